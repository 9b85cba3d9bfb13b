//! Which client a rule of EMQX is about: conditions on its names, and what stands for it in topics.
//!
//! They are settled once, at the log-in, where both names are known. So a regular expression costs
//! messages nothing, and rules that are for others are not kept.

use std::borrow::Cow;

use regex_lite::RegexBuilder;

use crate::auth::is_name;

/// Regular expressions of one set, the bytes of each, and the bytes of it compiled.
const EXPRESSIONS_MAX: usize = 10;
const EXPRESSION_BYTES_MAX: usize = 256;
const COMPILED_BYTES_MAX: usize = 16 * 1024;

/// A longer name is compared with no regular expression: the time is the product of both, and a
/// token is renewed on the thread that serves its client.
const NAME_BYTES_MAX: usize = 256;

/// The placeholder for the common name of the client's certificate.
const COMMON_NAME: &str = "${cert_common_name}";

/// Who logs in.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::auth) struct Subject<'a> {
    pub(in crate::auth) client_id: &'a str,
    /// The proved one.
    pub(in crate::auth) username: Option<&'a str>,
    /// Of its certificate.
    pub(in crate::auth) common_name: Option<&'a str>,
}

/// What the rules of one log-in have been read by.
pub(super) struct Reading<'a> {
    subject: Subject<'a>,
    expressions: usize,
    /// Another client could get other rules from the same text.
    pub(super) asks_client_id: bool,
    pub(super) asks_common_name: bool,
}

impl<'a> Reading<'a> {
    pub(super) const fn new(subject: Subject<'a>) -> Self {
        Self { subject, expressions: 0, asks_client_id: false, asks_common_name: false }
    }

    /// Whether a condition holds. None: it is none.
    ///
    /// # Errors
    ///
    /// A value that is not understood.
    pub(super) fn holds(&mut self, name: &str, value: &str) -> Result<Option<bool>, String> {
        let (of, is_expression) = match name {
            "username" => (self.subject.username, false),
            "username_re" => (self.subject.username, true),
            "clientid" => (Some(self.subject.client_id), false),
            "clientid_re" => (Some(self.subject.client_id), true),
            _ => return Ok(None),
        };
        if value.is_empty() {
            return Err(format!("'{name}' must be a text that is not empty"));
        }
        self.asks_client_id |= name.starts_with("clientid");
        if !is_expression {
            return Ok(Some(of == Some(value)));
        }
        self.expressions += 1;
        if self.expressions > EXPRESSIONS_MAX {
            return Err(format!("at most {EXPRESSIONS_MAX} regular expressions"));
        }
        if value.len() > EXPRESSION_BYTES_MAX {
            return Err(format!("'{name}' must have at most {EXPRESSION_BYTES_MAX} bytes"));
        }
        let expression = RegexBuilder::new(value).size_limit(COMPILED_BYTES_MAX).build();
        let expression = expression.map_err(|error| format!("'{name}': {error}"))?;
        match of {
            Some(text) if text.len() > NAME_BYTES_MAX => {
                Err(format!("'{name}' needs a name of at most {NAME_BYTES_MAX} bytes"))
            }
            text => Ok(Some(text.is_some_and(|text| expression.is_match(text)))),
        }
    }

    /// A topic with the common name put in. It is one level or a part of one, and no part of it can
    /// be read as a placeholder.
    ///
    /// # Errors
    ///
    /// There is no such name, or it would be more than that. A rule without it could deny less than
    /// was meant.
    pub(super) fn filled<'t>(&mut self, topic: &'t str) -> Result<Cow<'t, str>, String> {
        if !topic.contains(COMMON_NAME) {
            return Ok(topic.into());
        }
        self.asks_common_name = true;
        let is_usable = |name: &&str| is_name(name) && !name.contains(['/', '+', '#', '%', '$']);
        let name = self.subject.common_name.filter(is_usable).ok_or_else(|| {
            format!(
                "'{topic}' needs a client certificate with a common name without '/', '+', '#', \
                '%' and '$'"
            )
        })?;
        Ok(topic.replace(COMMON_NAME, name).into())
    }
}
