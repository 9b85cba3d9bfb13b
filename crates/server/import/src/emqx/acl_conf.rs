//! `acl.conf`: rules as Erlang terms.

use crate::policy::{Ordered, quoted};

/// A term.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Atom(String),
    Text(String),
    Number(i64),
    Tuple(Vec<Self>),
    List(Vec<Self>),
}

/// A rule with its line, ready for a policy file.
pub(super) type Rules = Vec<(usize, Ordered)>;

/// The rules of a file; an error has a line.
pub(super) fn rules(text: &str) -> Result<Rules, (usize, String)> {
    let mut reader = Reader { rest: text, line: 1 };
    let mut rules = Vec::new();
    loop {
        reader.skip();
        if reader.rest.is_empty() {
            return Ok(rules);
        }
        let line = reader.line;
        let term = reader.term(0)?;
        reader.skip();
        if !reader.take(".") {
            return Err((reader.line, "a rule ends with a full stop".into()));
        }
        for rule in rules_of(&term).map_err(|detail| (line, detail))? {
            rules.push((line, rule));
        }
    }
}

/// Whom a rule is about: a query, and addresses.
#[derive(Clone, Debug, Default)]
struct Whom {
    query: Option<String>,
    addresses: Vec<String>,
}

fn rules_of(term: &Term) -> Result<Vec<Ordered>, String> {
    let Term::Tuple(parts) = term else { return Err("a rule is a tuple".into()) };
    let all = Term::Atom("all".into());
    let every_topic = Term::List(EVERYTHING.map(|it| Term::Text(it.into())).into());
    let (effect, whom, action, topics) = match parts.as_slice() {
        [effect, whom] => (effect, whom, &all, &every_topic),
        [effect, whom, action] => (effect, whom, action, &every_topic),
        [effect, whom, action, topics] => (effect, whom, action, topics),
        _ => return Err("a rule is {allow | deny, WHO, ACTION, TOPICS}".into()),
    };
    let allows = match effect {
        Term::Atom(word) if word == "allow" => true,
        Term::Atom(word) if word == "deny" => false,
        _ => return Err("a rule begins with allow or deny".into()),
    };
    let whom = whom_of(whom)?;
    let (action, qos, retain) = action_of(action)?;
    let base = Ordered {
        allows,
        action: action.clone(),
        query: whom.query,
        addresses: whom.addresses,
        qos,
        retain,
        ..Ordered::default()
    };
    with_topics(&base, &action, topics)
}

/// `{eq, "#"}` is about a SUBSCRIBE; of a topic without wildcards it is that topic.
fn with_topics(base: &Ordered, action: &str, topics: &Term) -> Result<Vec<Ordered>, String> {
    let Term::List(topics) = topics else { return Err("the topics are a list".into()) };
    let (mut plain, mut exact) = (Vec::new(), Vec::new());
    for topic in topics {
        match topic {
            Term::Text(text) => plain.push(template(text)?),
            Term::Tuple(parts) => match parts.as_slice() {
                [Term::Atom(eq), Term::Text(text)] if eq == "eq" => exact.push(text.clone()),
                _ => return Err("a topic is a text or {eq, text}".into()),
            },
            _ => return Err("a topic is a text or {eq, text}".into()),
        }
    }
    let mut rules = Vec::new();
    if action != "subscribe" {
        let literal = exact.iter().filter(|text| !text.contains(['#', '+', '$']));
        plain.extend(literal.clone().cloned());
    }
    if !plain.is_empty() {
        rules.push(Ordered { topics: plain, ..base.clone() });
    }
    if !exact.is_empty() && action != "publish" {
        let topics = exact.iter().map(|text| format!("eq {text}")).collect();
        rules.push(Ordered { topics, action: "subscribe".into(), ..base.clone() });
    }
    Ok(rules)
}

/// Placeholders as policy files have them.
fn template(text: &str) -> Result<String, String> {
    let names = [
        ("${clientid}", "${client.id}"),
        ("${username}", "${user}"),
        ("%c", "${client.id}"),
        ("%u", "${user}"),
    ];
    let text = names.iter().fold(text.to_owned(), |text, (old, new)| text.replace(old, new));
    let text = text.replace("${client_attrs.", "${client.attributes.");
    let unknown = text.split("${").skip(1).find(|rest| {
        !["client.id}", "user}", "client.attributes."].iter().any(|known| rest.starts_with(known))
    });
    match unknown {
        Some(rest) => Err(format!("unknown placeholder '${{{rest}'")),
        None => Ok(text),
    }
}

fn whom_of(term: &Term) -> Result<Whom, String> {
    let query = |query: String| Whom { query: Some(query), ..Whom::default() };
    match term {
        Term::Atom(word) if word == "all" => Ok(Whom::default()),
        Term::Tuple(parts) => match parts.as_slice() {
            [Term::Atom(kind), value] => match (&**kind, value) {
                ("user" | "username", value) => Ok(query(compare("user", value)?)),
                ("client" | "clientid", value) => Ok(query(compare("client.id", value)?)),
                ("ipaddr", Term::Text(address)) => Ok(of_addresses(vec![address.clone()])),
                ("ipaddrs", Term::List(list)) => list
                    .iter()
                    .map(|it| match it {
                        Term::Text(address) => Ok(address.clone()),
                        _ => Err("an address is a text".to_owned()),
                    })
                    .collect::<Result<_, _>>()
                    .map(of_addresses),
                ("and", Term::List(list)) => all_of(list),
                ("or", Term::List(list)) => any_of(list),
                (other, _) => Err(format!("'{other}' cannot be imported")),
            },
            [Term::Atom(kind), Term::Text(name), value] if kind == "client_attr" => {
                Ok(query(compare(&format!("attributes.{name}"), value)?))
            }
            _ => Err("it is not understood whom the rule is about".into()),
        },
        _ => Err("it is not understood whom the rule is about".into()),
    }
}

fn of_addresses(addresses: Vec<String>) -> Whom {
    Whom { addresses, ..Whom::default() }
}

fn all_of(list: &[Term]) -> Result<Whom, String> {
    let mut whole = Whom::default();
    for whom in list.iter().map(whom_of) {
        let whom = whom?;
        if !whom.addresses.is_empty() {
            if !whole.addresses.is_empty() {
                return Err("`and` of two addresses cannot be imported".into());
            }
            whole.addresses = whom.addresses;
        }
        whole.query = match (whole.query, whom.query) {
            (Some(one), Some(other)) => Some(format!("({one}) and ({other})")),
            (one, other) => one.or(other),
        };
    }
    Ok(whole)
}

fn any_of(list: &[Term]) -> Result<Whom, String> {
    let all = list.iter().map(whom_of).collect::<Result<Vec<_>, _>>()?;
    if all.iter().any(|whom| whom.query.is_none() || !whom.addresses.is_empty()) {
        return Err("`or` takes usernames and client IDs only: write a rule for each".into());
    }
    let queries: Vec<String> =
        all.into_iter().filter_map(|whom| Some(format!("({})", whom.query?))).collect();
    match queries.is_empty() {
        true => Err("`or` is empty".into()),
        false => Ok(Whom { query: Some(queries.join(" or ")), ..Whom::default() }),
    }
}

/// A regular expression that is one text only is a comparison.
fn compare(operand: &str, value: &Term) -> Result<String, String> {
    match value {
        Term::Text(text) => Ok(format!("{operand} = {}", quoted(text)?)),
        Term::Atom(text) if text == "all" => Err("write all instead".into()),
        Term::Tuple(parts) => match parts.as_slice() {
            [Term::Atom(re), Term::Text(pattern)] if re == "re" => {
                let inner = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$'));
                let special = |letter| ".*+?()[]{}|\\^$".contains(letter);
                match inner.filter(|inner| !inner.contains(special)) {
                    Some(text) => Ok(format!("{operand} = {}", quoted(text)?)),
                    None => Err(format!(
                        "the regular expression '{pattern}' cannot be imported: name the {operand}, \
                         or use an attribute"
                    )),
                }
            }
            _ => Err("a name is a text or {re, text}".into()),
        },
        _ => Err("a name is a text or {re, text}".into()),
    }
}

/// The action, and conditions on QoS and retain flag.
type Action = (String, Vec<i64>, Option<bool>);

fn action_of(term: &Term) -> Result<Action, String> {
    let word = |word: &str| match word {
        "publish" | "pub" => Ok("publish".to_owned()),
        "subscribe" | "sub" => Ok("subscribe".to_owned()),
        "all" | "pubsub" => Ok("all".to_owned()),
        other => Err(format!("an action is publish, subscribe or all, got '{other}'")),
    };
    match term {
        Term::Atom(action) => Ok((word(action)?, Vec::new(), None)),
        Term::Tuple(parts) => {
            let [Term::Atom(action), Term::List(conditions)] = parts.as_slice() else {
                return Err("an action is a word, or {word, conditions}".into());
            };
            let (mut qos, mut retain) = (Vec::new(), None);
            for condition in conditions {
                match condition {
                    Term::Tuple(pair) => match pair.as_slice() {
                        [Term::Atom(key), Term::Number(level)] if key == "qos" => qos.push(*level),
                        [Term::Atom(key), Term::List(levels)] if key == "qos" => {
                            for level in levels {
                                let Term::Number(level) = level else {
                                    return Err("a QoS is a number".into());
                                };
                                qos.push(*level);
                            }
                        }
                        [Term::Atom(key), Term::Atom(value)] if key == "retain" => {
                            retain = match &**value {
                                "true" => Some(true),
                                "false" => Some(false),
                                "all" => None,
                                _ => return Err("retain is true, false or all".into()),
                            };
                        }
                        _ => return Err("a condition is {qos, N} or {retain, FLAG}".into()),
                    },
                    _ => return Err("a condition is {qos, N} or {retain, FLAG}".into()),
                }
            }
            if qos.iter().any(|level| !(0..=2).contains(level)) {
                return Err("a QoS is 0, 1 or 2".into());
            }
            let action = word(action)?;
            if retain.is_some() && action != "publish" {
                return Err("retain needs the action publish".into());
            }
            Ok((action, qos, retain))
        }
        _ => Err("an action is a word, or {word, conditions}".into()),
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl Reader<'_> {
    fn skip(&mut self) {
        loop {
            let trimmed = self.rest.trim_start();
            self.line += self.rest[..self.rest.len() - trimmed.len()].matches('\n').count();
            self.rest = trimmed;
            if !self.rest.starts_with('%') {
                return;
            }
            self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
        }
    }

    fn take(&mut self, token: &str) -> bool {
        self.rest.strip_prefix(token).map(|rest| self.rest = rest).is_some()
    }

    fn fail<T>(&self, detail: &str) -> Result<T, (usize, String)> {
        Err((self.line, detail.into()))
    }

    fn term(&mut self, depth: usize) -> Result<Term, (usize, String)> {
        if depth > DEPTH_MAX {
            return self.fail("too many brackets");
        }
        self.skip();
        if self.take("{") {
            return Ok(Term::Tuple(self.terms("}", depth + 1)?));
        }
        if self.take("[") {
            return Ok(Term::List(self.terms("]", depth + 1)?));
        }
        if self.take("<<") {
            let text = self.term(depth + 1)?;
            self.skip();
            return if self.take(">>") { Ok(text) } else { self.fail("`>>` is missing") };
        }
        for mark in ['"', '\''] {
            if self.rest.starts_with(mark) {
                let text = self.quoted(mark)?;
                return Ok(if mark == '"' { Term::Text(text) } else { Term::Atom(text) });
            }
        }
        let is_end = |it: char| !(it.is_alphanumeric() || it == '_' || it == '@' || it == '-');
        let end = self.rest.find(is_end).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            return self.fail("a term is expected here");
        }
        self.rest = rest;
        Ok(word.parse().map_or_else(|_| Term::Atom(word.into()), Term::Number))
    }

    fn terms(&mut self, close: &str, depth: usize) -> Result<Vec<Term>, (usize, String)> {
        let mut terms = Vec::new();
        loop {
            self.skip();
            if self.take(close) {
                return Ok(terms);
            }
            if !terms.is_empty() && !self.take(",") {
                return self.fail("a comma is missing");
            }
            terms.push(self.term(depth)?);
        }
    }

    fn quoted(&mut self, mark: char) -> Result<String, (usize, String)> {
        let mut text = String::new();
        let mut letters = self.rest.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\n' => break,
                '\\' => match letters.next() {
                    Some((_, letter)) => text.push(letter),
                    None => break,
                },
                letter if letter == mark => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                letter => text.push(letter),
            }
        }
        self.fail("a text has no closing quotation mark")
    }
}

/// `#` leaves out topics that begin with `$`.
const EVERYTHING: [&str; 2] = ["#", "$SYS/#"];

const DEPTH_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let show = |(line, rule): (usize, Ordered)| {
            let effect = if rule.allows { "allow" } else { "deny" };
            let query = rule.query.unwrap_or_default();
            let topics = rule.topics.join(" ");
            format!("{line} {effect} {query}|{}|{}|{topics}", rule.addresses.join(" "), rule.action)
        };
        rules(text).unwrap().into_iter().map(show).collect()
    }

    #[test]
    fn the_file_of_emqx_is_understood() {
        let text = "%% comment\n\
            {allow, {username, {re, \"^dashboard$\"}}, subscribe, [\"$SYS/#\"]}.\n\n\
            {allow, {ipaddr, \"127.0.0.1\"}, all, [\"$SYS/#\", \"#\"]}.\n\
            {deny, all, subscribe, [\"$SYS/#\", {eq, \"#\"}, {eq, \"+/#\"}]}.\n\
            {allow, all}.\n";
        let expected = [
            "2 allow user = 'dashboard'||subscribe|$SYS/#",
            "4 allow |127.0.0.1|all|$SYS/# #",
            "5 deny ||subscribe|$SYS/#",
            "5 deny ||subscribe|eq # eq +/#",
            "6 allow ||all|# $SYS/#",
        ];
        assert_eq!(shown(text), expected);
    }

    #[test]
    fn conditions_and_placeholders_are_kept() {
        let text = "{allow, {'and', [{user, \"a'b\"}, {ipaddr, \"10.0.0.0/8\"}]}, publish, \
                    [\"x/${clientid}\", {eq, \"y/z\"}]}.\n\
                    {deny, {'or', [{clientid, <<\"c\">>}, {client_attr, \"g\", \"v\"}]}, \
                    {publish, [{qos, [0, 1]}, {retain, true}]}, [\"${client_attrs.s}/%u\"]}.";
        let expected = [
            "1 allow user = \"a'b\"|10.0.0.0/8|publish|x/${client.id} y/z",
            "2 deny (client.id = 'c') or (attributes.g = 'v')||publish|\
             ${client.attributes.s}/${user}",
        ];
        assert_eq!(shown(text), expected);
        let rules = rules(text).unwrap();
        assert_eq!((&rules[1].1.qos, rules[1].1.retain), (&vec![0, 1], Some(true)));
    }

    #[test]
    fn a_rule_that_is_not_understood_is_an_error() {
        for (text, line, what) in [
            ("{allow, all}", 1, "full stop"),
            ("\n{permit, all}.", 2, "allow or deny"),
            ("{allow, {username, {re, \"^a.*\"}}, all, [\"#\"]}.", 1, "regular expression"),
            ("{allow, {'or', [{ipaddr, \"1.2.3.4\"}]}, all, [\"#\"]}.", 1, "`or`"),
            ("{allow, all, publish, [\"${zone}/x\"]}.", 1, "placeholder"),
            ("{allow, all, {subscribe, [{retain, true}]}, [\"#\"]}.", 1, "retain"),
            ("{allow, {zone, x}, all, [\"#\"]}.", 1, "'zone'"),
            ("{allow, all, publish, [\"x]}.", 1, "closing"),
            ("{{{{{{{{{{{{{{{{{{{{{", 1, "brackets"),
        ] {
            let (at, detail) = rules(text).unwrap_err();
            assert!(at == line && detail.contains(what), "{text}: {at} {detail}");
        }
    }
}
