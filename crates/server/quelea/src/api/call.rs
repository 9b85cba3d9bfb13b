//! What a request asks for: its parameters, checked against the table of routes, and its body.

use serde::de::DeserializeOwned;
use web::axum::http::StatusCode;
use web::percent_decoded;

use super::logins::Proof;
use super::params::{Param, ParamKind, ParamLocation};
use super::problem::Problem;
use super::route::Route;
use super::scopes;
use super::views::Caller;
use config::namespaces::DEFAULT;

/// A request that has been understood.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) caller: Caller,
    /// What the caller has shown.
    pub(crate) proof: Option<Proof>,
    values: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Call {
    /// The parameters of a request. `path` without the prefix of the API, `pattern` the path of the
    /// route that it meets.
    pub(crate) fn parse(
        route: &'static Route,
        (pattern, path): (&'static str, &str),
        query: &str,
        caller: Caller,
    ) -> Result<Self, Problem> {
        let mut call = Self { caller, proof: None, values: Vec::new(), body: Vec::new() };
        for (wanted, part) in pattern.split('/').zip(path.split('/')) {
            let name = wanted.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
            let param = name.and_then(|name| route.params.iter().find(|it| it.name == name));
            if let Some(param) = param {
                call.put(param, ParamLocation::Path, part)?;
            }
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let spaced = value.replace('+', " ");
            call.take(route, name, &spaced)?;
        }
        for param in route.params.iter().filter(|param| param.is_required) {
            if call.text(param.name).is_none() {
                let detail = format!("'{}' is missing", param.name);
                return Err(Problem::bad("query", detail).fix(param.about));
            }
        }
        Ok(call)
    }

    /// One that another node passes on, with its parameters in clear.
    pub(super) fn of_node(
        route: &'static Route,
        values: &[(String, String)],
        caller: Caller,
    ) -> Result<Self, Problem> {
        let mut call = Self { caller, proof: None, values: Vec::new(), body: Vec::new() };
        for (name, value) in values {
            let param = route.params.iter().find(|param| param.name == name);
            let param = param.ok_or_else(|| Problem::missing("parameter", name))?;
            param.check(value).map_err(|detail| Problem::bad(name.as_str(), detail))?;
            call.values.push((param.name, value.clone()));
        }
        Ok(call)
    }

    /// All parameters.
    pub(super) fn values(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.values.iter().map(|(name, value)| (*name, value.as_str()))
    }

    pub(super) fn body_bytes(&self) -> &[u8] {
        &self.body
    }

    fn take(&mut self, route: &'static Route, name: &str, value: &str) -> Result<(), Problem> {
        let is_query = |param: &&Param| param.location == ParamLocation::Query;
        let mut own = route.params.iter().filter(is_query);
        let Some(param) = own.clone().find(|param| param.name == name) else {
            let names: Vec<_> = own.by_ref().map(|param| param.name).collect();
            let fix = match names.as_slice() {
                [] => "omit it".to_owned(),
                names => format!("valid: {}", names.join(", ")),
            };
            return Err(Problem::bad("query", format!("unknown name '{name}'")).fix(fix));
        };
        self.put(param, ParamLocation::Query, value)
    }

    /// `location`: where the value stands.
    fn put(
        &mut self,
        param: &'static Param,
        location: ParamLocation,
        value: &str,
    ) -> Result<(), Problem> {
        let shown = format!("{} parameter {}", location.as_str(), param.name);
        let value = percent_decoded(value).ok_or_else(|| {
            let fix = "write bytes other than letters and digits as %XX, in UTF-8";
            Problem::bad(&shown, "must be percent-encoded UTF-8").fix(fix)
        })?;
        if self.text(param.name).is_some() {
            return Err(Problem::bad(shown, "must be given once"));
        }
        param.check(&value).map_err(|detail| Problem::bad(shown, detail).fix(param.about))?;
        self.values.push((param.name, value));
        Ok(())
    }

    /// The namespace of its caller, who sees nothing else. None: the caller belongs to none.
    pub(crate) fn tenant(&self) -> Option<&str> {
        self.caller.namespace.as_deref()
    }

    /// With what its caller has shown.
    pub(crate) fn shown(self, proof: Proof) -> Self {
        Self { proof: Some(proof), ..self }
    }

    pub(crate) fn put_body(&mut self, body: Vec<u8>) {
        self.body = body;
    }

    /// The body as JSON.
    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        identity::json::read(&self.body).map_err(|error| {
            let location = format!("body, line {} column {}", error.line(), error.column());
            let fix = "the schema is in /api/v1/openapi.json";
            Problem::bad(location, format!("must be JSON of the schema: {error}")).fix(fix)
        })
    }

    /// What the body is about, for the log: the topic of a message, the first of a batch and how
    /// many there are, or who is banned.
    pub(crate) fn subject(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = |name: &str| body[name].as_str().unwrap_or_default();
        if let Some(messages) = body["messages"].as_array() {
            let first = messages.first().and_then(|it| it["topic"].as_str()).unwrap_or_default();
            return format!("{} messages, the first on {first}", messages.len());
        }
        match (text("topic"), text("kind")) {
            ("", "") => text("to").to_owned(),
            ("", kind) => format!("{kind} {}", text("who")),
            (topic, _) => topic.to_owned(),
        }
    }

    /// The namespace that a call of this route is about, for the log; empty: it is about none.
    pub(crate) fn namespace(&self, route: &Route) -> String {
        if let Some(name) = self.tenant().or_else(|| self.text(scopes::PARAM)) {
            return name.to_owned();
        }
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let takes_one = route.params.iter().any(|param| param.name == scopes::PARAM);
        let one = body["namespace"].as_str().or_else(|| takes_one.then_some(DEFAULT));
        one.unwrap_or_default().to_owned()
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// One that the table says is there.
    pub(crate) fn needed(&self, name: &str) -> &str {
        self.text(name).unwrap_or_default()
    }

    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        self.text(name).map(|value| value == "true")
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(|text| text.parse().ok())
    }

    /// Rows that are asked for.
    pub(crate) fn limit(&self) -> usize {
        self.number("limit").map_or(LIMIT_DEFAULT, |limit| limit as usize)
    }
}

impl Param {
    fn check(&self, value: &str) -> Result<(), String> {
        match self.kind {
            ParamKind::Text { bytes_min, .. } if value.len() < bytes_min => {
                Err("must not be empty".into())
            }
            ParamKind::Text { bytes_max, .. } if value.len() > bytes_max => {
                Err(format!("must have at most {bytes_max} bytes"))
            }
            ParamKind::Text { .. } => Ok(()),
            ParamKind::Flag => match value {
                "true" | "false" => Ok(()),
                _ => Err(format!("must be true or false, got '{value}'")),
            },
            ParamKind::Number { min, max } => match value.parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(()),
                _ => Err(format!("must be between {min} and {max}, got '{value}'")),
            },
        }
    }
}

/// A body that cannot be read as such.
pub(crate) fn too_much(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
        .at("body")
        .fix("request fewer rows at a time")
}

pub(crate) const LIMIT_DEFAULT: usize = 100;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api::routes::routes;

    fn route(path: &str) -> &'static Route {
        let is_of = |route: &&Route| route.path == path || route.segment_path == Some(path);
        routes().find(is_of).unwrap()
    }

    fn caller() -> Caller {
        Caller { name: "me".into(), role: "admin".into(), namespace: None }
    }

    fn parse(path: &'static str, own: &str, query: &str) -> Result<Call, Problem> {
        Call::parse(route(path), (path, own), query, caller())
    }

    #[test]
    fn parameters_are_decoded_and_checked() {
        let own = "/clients/a%2Fb%20c%C3%A9";
        assert_eq!(parse("/clients/{client_id}", own, "").unwrap().needed("client_id"), "a/b cé");
        for (name, query) in [("..", "client_id=.."), (".", "client_id=%2e"), ("", "client_id=")] {
            assert_eq!(parse("/client", "/client", query).unwrap().needed("client_id"), name);
        }
        let query = "limit=7&connected=true&username=x+y%26";
        let call = parse("/clients", "/clients", query).unwrap();
        assert_eq!((call.limit(), call.flag("connected")), (7, Some(true)));
        assert_eq!(call.text("username"), Some("x y&"));
        assert_eq!(parse("/clients", "/clients", "").unwrap().limit(), LIMIT_DEFAULT);
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_place() {
        let error = |query: &str| {
            let problem = parse("/clients", "/clients", query).unwrap_err();
            assert_eq!(problem.status, StatusCode::BAD_REQUEST, "{query}");
            problem.detail
        };
        assert!(error("limit=0").contains("must be between 1 and 1000"));
        assert!(error("limit=99999999999999999999").contains("must be between"));
        assert!(error("connected=yes").contains("must be true or false"));
        assert!(error("cursor=").contains("empty"));
        assert!(error("color=red").contains("unknown name 'color'"));
        assert!(error("limit=1&limit=2").contains("once"));
        assert!(error("username=%zz").contains("percent-encoded"));
        assert!(error("username=%f").contains("percent-encoded"));
        assert!(error("username=%ff").contains("percent-encoded"));
        let missing = parse("/topics/receivers", "/topics/receivers", "").unwrap_err();
        assert!(missing.detail.contains("'topic' is missing"));
        let twice = parse("/clients/{client_id}", "/clients/a", "client_id=b").unwrap_err();
        assert!(twice.detail.contains("once"));
    }

    #[test]
    fn a_body_that_is_not_understood_is_reported_with_its_line() {
        use crate::api::views::Publish;
        let error = |body: &str| {
            let mut call = parse("/publish", "/publish", "").unwrap();
            call.put_body(body.into());
            call.body::<Publish>().unwrap_err().detail
        };
        assert!(error("").contains("EOF"));
        assert!(error("{\"topic\":1}").contains("invalid type"));
        assert!(error("{\"topic\":\"a\",\"quality\":1}").contains("unknown field `quality`"));
        assert!(error("{\"qos\":1}").contains("missing field `topic`"));
        assert!(error("{\"topic\":\"a\",\"topic\":\"b\"}").contains("'topic' is there twice"));
    }

    proptest! {
        #[test]
        fn no_request_makes_the_parser_panic(
            number in 0..routes().count(),
            path in ".{0,60}",
            query in ".{0,200}",
        ) {
            let route = routes().nth(number).unwrap();
            for pattern in [Some(route.path), route.segment_path].into_iter().flatten() {
                let _ = Call::parse(route, (pattern, &path), &query, caller());
            }
        }

        #[test]
        fn what_was_encoded_is_decoded(text in ".{0,40}") {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            prop_assert_eq!(percent_decoded(&encoded), Some(text));
        }
    }
}
