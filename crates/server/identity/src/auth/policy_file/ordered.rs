//! Rules in order, of which the first that matches decides.
//!
//! ```toml
//! [[rules]]
//! effect = "deny"
//! action = "publish"
//! topics = ["alarms/#"]
//! retain = true
//! addresses = ["10.0.0.0/8"]
//! ```

use policy::OrderedRule;
use serde::Deserialize;
use toml::Spanned;

use super::{ALL, Group, Mistake, Reading, filter_of};
use config::Network;

/// So many rules, and topics of one, at most: a publish that none of them is about asks all.
const RULES_MAX: usize = 1_000;
const TOPICS_MAX: usize = 100;

/// Addresses of a rule at most.
const ADDRESSES_MAX: usize = 1_000;

/// What stands before a filter of which only the very text is meant, as in EMQX.
const EXACT: &str = "eq ";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    effect: Spanned<String>,
    #[serde(default)]
    action: Option<Spanned<String>>,
    topics: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    qos: Option<Spanned<Vec<u8>>>,
    #[serde(default)]
    retain: Option<Spanned<bool>>,
    #[serde(default)]
    addresses: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default)]
    listeners: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    group: Option<Spanned<String>>,
    #[serde(default, rename = "description")]
    _description: String,
}

impl Reading<'_> {
    pub(super) fn ordered(
        &self,
        raw: Vec<RawRule>,
        groups: &[Group],
    ) -> Result<Vec<OrderedRule>, Mistake> {
        self.limit("rules", raw.len(), RULES_MAX)?;
        raw.into_iter().map(|raw| self.ordered_rule(raw, groups)).collect()
    }

    fn ordered_rule(&self, raw: RawRule, groups: &[Group]) -> Result<OrderedRule, Mistake> {
        let line = self.line(&raw.effect.span());
        let allows = match raw.effect.get_ref().as_str() {
            "allow" => true,
            "deny" => false,
            other => return Err((line, format!("an effect must be allow or deny, got '{other}'"))),
        };
        let (publish, subscribe) = self.action(raw.action.as_ref())?;
        let retain = raw.retain.as_ref().map(|retain| *retain.get_ref());
        if let Some(retain) = raw.retain.filter(|_| subscribe) {
            let detail = "`retain` needs action = \"publish\"";
            return Err((self.line(&retain.span()), detail.into()));
        }
        let (filters, exact_filters) = self.topics(raw.topics, publish)?;
        let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        let query = match raw.group {
            Some(name) if name.get_ref() != ALL => {
                Some(groups[self.find("group", &name, &names)?].query.clone())
            }
            _ => None,
        };
        Ok(OrderedRule {
            allows,
            publish,
            subscribe,
            filters,
            exact_filters,
            is_about_every_topic: false,
            qos: self.qos(raw.qos)?,
            retain,
            addresses: self.addresses(&self.some("addresses", raw.addresses)?)?,
            listeners: self.some("listeners", raw.listeners)?,
            query,
            line,
        })
    }

    fn action(&self, action: Option<&Spanned<String>>) -> Result<(bool, bool), Mistake> {
        match action.map_or("all", |action| action.get_ref().as_str()) {
            "publish" => Ok((true, false)),
            "subscribe" => Ok((false, true)),
            "all" => Ok((true, true)),
            other => {
                let line = action.map_or(1, |action| self.line(&action.span()));
                let detail = format!("an action must be publish, subscribe or all, got '{other}'");
                Err((line, detail))
            }
        }
    }

    /// Filters, and those of which the very text is meant.
    fn topics(
        &self,
        topics: Spanned<Vec<Spanned<String>>>,
        publish: bool,
    ) -> Result<(Vec<String>, Vec<String>), Mistake> {
        let count = topics.get_ref().len();
        if count == 0 || count > TOPICS_MAX {
            let detail = format!("a rule must have between 1 and {TOPICS_MAX} topics, got {count}");
            return Err((self.line(&topics.span()), detail));
        }
        let (mut filters, mut exact_filters) = (Vec::new(), Vec::new());
        for topic in topics.into_inner() {
            let line = self.line(&topic.span());
            let text = topic.into_inner();
            match text.strip_prefix(EXACT) {
                Some(_) if publish => {
                    let detail = "`eq` needs action = \"subscribe\"";
                    return Err((line, format!("'{text}': {detail}")));
                }
                Some(exact) => exact_filters.push(exact.to_owned()),
                None => {
                    let filter = filter_of(&text);
                    filters.push(filter.map_err(|error| (line, format!("'{text}': {error}")))?);
                }
            }
        }
        Ok((filters, exact_filters))
    }

    fn qos(&self, qos: Option<Spanned<Vec<u8>>>) -> Result<Vec<u8>, Mistake> {
        let Some(qos) = qos else { return Ok(Vec::new()) };
        let line = self.line(&qos.span());
        let qos = qos.into_inner();
        if qos.is_empty() || qos.iter().any(|level| *level > 2) {
            return Err((line, "`qos` must be a list of 0, 1 and 2, such as [1, 2]".into()));
        }
        Ok(qos)
    }

    /// None of them would be any of them.
    fn some<T>(&self, key: &str, list: Option<Spanned<Vec<T>>>) -> Result<Vec<T>, Mistake> {
        let Some(list) = list else { return Ok(Vec::new()) };
        if list.get_ref().is_empty() {
            let detail = format!("`{key}` must not be empty: omit it if the rule is for all");
            return Err((self.line(&list.span()), detail));
        }
        Ok(list.into_inner())
    }

    fn addresses(
        &self,
        addresses: &[Spanned<String>],
    ) -> Result<Vec<std::ops::RangeInclusive<std::net::IpAddr>>, Mistake> {
        self.limit("addresses", addresses.len(), ADDRESSES_MAX)?;
        let range = |address: &Spanned<String>| {
            let network = address.get_ref().parse::<Network>();
            let network =
                network.map_err(|error| (self.line(&address.span()), error.to_string()))?;
            Ok(network.addresses())
        };
        addresses.iter().map(range).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    const GROUPS: &str = "[[groups]]\nname = \"cars\"\nquery = \"attributes.type = 'car'\"\n";

    #[test]
    fn a_list_of_nothing_is_not_a_list_of_everything() {
        for list in ["addresses", "listeners", "qos", "topics"] {
            let topics = if list == "topics" { "" } else { "topics = [\"a\"]\n" };
            let text = format!("[[rules]]\neffect = \"allow\"\n{topics}{list} = []\n");
            assert!(parse(&text).is_err(), "{list}");
        }
    }

    #[test]
    fn rules_are_read_with_all_their_conditions() {
        let text = format!(
            "{GROUPS}[[rules]]\neffect = \"deny\"\naction = \"publish\"\n\
             topics = [\"a/${{client.id}}/#\"]\nqos = [1, 2]\nretain = true\n\
             addresses = [\"10.0.0.0/8\", \"::1\"]\nlisteners = [\"outside\"]\ngroup = \"cars\"\n\
             [[rules]]\neffect = \"allow\"\naction = \"subscribe\"\ntopics = [\"eq #\", \"b\"]\n"
        );
        let policy = parse(&text).unwrap();
        let [first, second] = policy.ordered.as_slice() else { panic!("two rules") };
        assert!(!first.allows && first.publish && !first.subscribe);
        assert_eq!((first.filters[0].as_str(), first.line), ("a/%c/#", 5));
        assert_eq!((first.qos.as_slice(), first.retain), ([1, 2].as_slice(), Some(true)));
        assert!(first.addresses[0].contains(&"10.1.2.3".parse::<std::net::IpAddr>().unwrap()));
        assert_eq!(first.listeners, ["outside"]);
        assert_eq!(first.query.as_ref(), Some(&policy.groups[0].query));
        assert!(second.allows && second.subscribe && !second.publish);
        assert_eq!((second.exact_filters[0].as_str(), second.filters[0].as_str()), ("#", "b"));
    }

    #[test]
    fn what_is_not_understood_is_reported_with_its_line() {
        for (lines, line, what) in [
            ("effect = \"maybe\"\ntopics = [\"a\"]", 2, "maybe"),
            ("effect = \"deny\"\naction = \"read\"\ntopics = [\"a\"]", 3, "read"),
            ("effect = \"deny\"\ntopics = []", 3, "0 topics"),
            ("effect = \"deny\"\ntopics = [\"a\"]\nretain = true", 4, "publish"),
            ("effect = \"deny\"\ntopics = [\"eq #\"]", 3, "subscribe"),
            ("effect = \"deny\"\ntopics = [\"a\"]\nqos = [3]", 4, "0, 1 and 2"),
            ("effect = \"deny\"\ntopics = [\"a\"]\nqos = []", 4, "0, 1 and 2"),
            ("effect = \"deny\"\ntopics = [\"a\"]\naddresses = [\"x\"]", 4, "'x'"),
            ("effect = \"deny\"\ntopics = [\"a\"]\ngroup = \"vans\"", 4, "'vans'"),
            ("effect = \"deny\"\ntopics = [\"a#\"]", 2, "a#"),
            ("effect = \"deny\"\ntopics = [\"${x}\"]", 3, "'x'"),
            ("effect = \"deny\"", 1, "topics"),
            ("effect = \"deny\"\ntopics = [\"a\"]\ncolor = 1", 4, "color"),
        ] {
            let (at, why) = parse(&format!("[[rules]]\n{lines}\n")).unwrap_err();
            assert!(at == line && why.contains(what), "{lines}: {at} {why}");
        }
        let many = "[[rules]]\neffect = \"deny\"\ntopics = [\"a\"]\n".repeat(super::RULES_MAX + 1);
        assert!(parse(&many).unwrap_err().1.contains("at most 1000"));
    }
}
