//! Questions about a client, by which a policy puts it into groups.
//!
//! ```text
//! expression = term {("and" | "or") term}      `and` binds tighter than `or`
//! term       = "not" term | "(" expression ")" | field comparison
//! field    = "attributes." NAME | "client.id" | "user" | "authenticationName"
//! comparison = ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") value
//!            | ["not"] "in" "[" value {"," value} "]"
//! value      = 'text' | "text" | number
//! ```
//!
//! Words are read in upper and lower case. `authenticationName` is the user name, as Event Grid
//! calls it. What a client does not have compares as false, whatever the comparison. Of a list
//! `=` and `in` want one of its values, `!=` and `not in` none; the four that order want a number.
//! Numbers are compared as they were written, never as floating point.

use crate::access::Identity;
use crate::{Attribute, Number};

/// The longest text of a query, in bytes: it is asked at each CONNECT.
pub const QUERY_BYTES_MAX: usize = 4 * 1024;

/// How deep parentheses and `not` may lie in one another.
const DEPTH_MAX: usize = 32;

/// A question, ready to be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Query(Node);

/// Where a query is not one, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    /// In bytes from its beginning.
    pub at: usize,
    pub detail: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Any(Vec<Self>),
    Every(Vec<Self>),
    Not(Box<Self>),
    Compare(Field, Comparison),
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Attribute(Box<str>),
    ClientId,
    Username,
}

#[derive(Clone, Debug, PartialEq)]
enum Comparison {
    Among(Vec<Value>),
    NotAmong(Vec<Value>),
    Ordered(Order, Number),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(Box<str>),
    Number(Number),
}

impl Node {
    fn asks_attributes(&self) -> bool {
        match self {
            Self::Any(nodes) | Self::Every(nodes) => nodes.iter().any(Self::asks_attributes),
            Self::Not(node) => node.asks_attributes(),
            Self::Compare(field, _) => matches!(field, Field::Attribute(_)),
        }
    }
}

impl Query {
    /// Does it ask for what only a credential says?
    pub(crate) fn asks_attributes(&self) -> bool {
        self.0.asks_attributes()
    }

    /// # Errors
    ///
    /// The first place at which it does not follow the grammar of this module.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        if text.len() > QUERY_BYTES_MAX {
            let detail = format!("a query has {QUERY_BYTES_MAX} bytes at most");
            return Err(QueryError { at: QUERY_BYTES_MAX, detail });
        }
        let mut parser = Parser { tokens: tokens_of(text)?, next: 0, depth: 0, end: text.len() };
        let node = parser.any()?;
        match parser.peek() {
            None => Ok(Self(node)),
            Some(token) => {
                let found = token.shown();
                Err(parser.error(format!("expected 'and', 'or' or the end, found {found}")))
            }
        }
    }

    /// The answer for a client.
    pub fn holds(&self, who: Identity<'_>) -> bool {
        self.0.holds(who)
    }

    /// The names of the attributes that it asks for.
    pub fn attributes(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for field in self.fields() {
            if let Field::Attribute(name) = field {
                names.push(&**name);
            }
        }
        names
    }

    /// Does the answer depend on the user name?
    pub fn asks_for_user(&self) -> bool {
        self.fields().contains(&&Field::Username)
    }

    fn fields(&self) -> Vec<&Field> {
        let mut fields = Vec::new();
        self.0.collect_fields(&mut fields);
        fields
    }
}

impl std::fmt::Display for QueryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at character {}: {}", self.at + 1, self.detail)
    }
}

impl std::error::Error for QueryError {}

impl Node {
    fn holds(&self, who: Identity<'_>) -> bool {
        let holds = |node: &Self| node.holds(who);
        match self {
            Self::Any(nodes) => nodes.iter().any(holds),
            Self::Every(nodes) => nodes.iter().all(holds),
            Self::Not(node) => !holds(node),
            Self::Compare(Field::ClientId, how) => how.holds_for_text(who.client_id),
            Self::Compare(Field::Username, how) => {
                who.username.is_some_and(|name| how.holds_for_text(name))
            }
            Self::Compare(Field::Attribute(name), how) => {
                let value = who.principal.and_then(|own| own.attributes.get(name));
                value.is_some_and(|attribute| how.holds(attribute))
            }
        }
    }

    fn collect_fields<'a>(&'a self, fields: &mut Vec<&'a Field>) {
        match self {
            Self::Any(nodes) | Self::Every(nodes) => {
                nodes.iter().for_each(|node| node.collect_fields(fields));
            }
            Self::Not(node) => node.collect_fields(fields),
            Self::Compare(field, _) => fields.push(field),
        }
    }
}

impl Comparison {
    fn holds(&self, attribute: &Attribute) -> bool {
        let is_among = |values: &[Value]| values.iter().any(|value| value.is(attribute));
        match self {
            Self::Among(values) => is_among(values),
            Self::NotAmong(values) => !is_among(values),
            Self::Ordered(order, limit) => match attribute {
                Attribute::Number(number) => order.holds(*number, *limit),
                Attribute::Text(_) | Attribute::List(_) => false,
            },
        }
    }

    fn holds_for_text(&self, text: &str) -> bool {
        let is_among = |values: &[Value]| values.iter().any(|value| value.is_text(text));
        match self {
            Self::Among(values) => is_among(values),
            Self::NotAmong(values) => !is_among(values),
            Self::Ordered(..) => false,
        }
    }
}

impl Order {
    fn holds(self, number: Number, limit: Number) -> bool {
        match self {
            Self::Less => number < limit,
            Self::AtMost => number <= limit,
            Self::More => number > limit,
            Self::AtLeast => number >= limit,
        }
    }
}

impl Value {
    fn is(&self, attribute: &Attribute) -> bool {
        match (self, attribute) {
            (_, Attribute::List(items)) => items.iter().any(|item| self.is(item)),
            (Self::Number(own), Attribute::Number(other)) => own == other,
            (_, Attribute::Text(text)) => self.is_text(text),
            (Self::Text(_), Attribute::Number(_)) => false,
        }
    }

    fn is_text(&self, other: &str) -> bool {
        matches!(self, Self::Text(own) if **own == *other)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(Number),
    /// `( ) [ ] ,` and the comparisons.
    Sign(&'static str),
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Word(word) => format!("'{word}'"),
            Self::Text(text) => format!("the text '{text}'"),
            Self::Number(number) => format!("{number}"),
            Self::Sign(sign) => format!("'{sign}'"),
        }
    }

    fn is_word(&self, wanted: &str) -> bool {
        matches!(self, Self::Word(word) if word.eq_ignore_ascii_case(wanted))
    }
}

/// The longer ones first.
const SIGNS: [&str; 13] = ["==", "!=", "<>", "<=", ">=", "=", "<", ">", "(", ")", "[", "]", ","];

fn tokens_of(text: &str) -> Result<Vec<(usize, Token)>, QueryError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (token, bytes) = if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign))
        {
            (Token::Sign(sign), sign.len())
        } else if first == '\'' || first == '"' {
            let Some(end) = rest[1..].find(first) else {
                return Err(QueryError {
                    at,
                    detail: "the text that begins here has no end".into(),
                });
            };
            (Token::Text(rest[1..=end].into()), end + 2)
        } else if first.is_ascii_digit() || first == '-' {
            number_at(rest).ok_or_else(|| QueryError { at, detail: NO_NUMBER.into() })?
        } else {
            let is_of_word = |c: char| c.is_alphanumeric() || "._-".contains(c);
            let bytes = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            if bytes == 0 {
                let detail = format!("unexpected '{first}'; texts must be in quotes");
                return Err(QueryError { at, detail });
            }
            (Token::Word(rest[..bytes].into()), bytes)
        };
        tokens.push((at, token));
        at += bytes;
    }
    Ok(tokens)
}

/// A number is compared exactly, or not at all.
const NO_NUMBER: &str = "must be a number such as 7, -2.5 or 1e3, with at most 38 digits";

fn number_at(rest: &str) -> Option<(Token, usize)> {
    let is_of_number = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    let bytes = rest.find(|c| !is_of_number(c)).unwrap_or(rest.len());
    Some((Token::Number(Number::parse(&rest[..bytes])?), bytes))
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    /// Of the text.
    end: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(_, token)| token)
    }

    fn take(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.next += usize::from(token.is_some());
        token
    }

    fn take_word(&mut self, wanted: &str) -> bool {
        let is_it = self.peek().is_some_and(|token| token.is_word(wanted));
        self.next += usize::from(is_it);
        is_it
    }

    fn take_sign(&mut self, wanted: &str) -> bool {
        let is_it = matches!(self.peek(), Some(Token::Sign(sign)) if *sign == wanted);
        self.next += usize::from(is_it);
        is_it
    }

    fn error(&self, detail: String) -> QueryError {
        let at = self.tokens.get(self.next).map_or(self.end, |(at, _)| *at);
        QueryError { at, detail }
    }

    fn expected(&self, what: &str) -> QueryError {
        let found = self.peek().map_or("the end".into(), Token::shown);
        self.error(format!("expected {what}, found {found}"))
    }

    fn any(&mut self) -> Result<Node, QueryError> {
        let mut nodes = vec![self.every()?];
        while self.take_word("or") {
            nodes.push(self.every()?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Any(nodes) })
    }

    fn every(&mut self) -> Result<Node, QueryError> {
        let mut nodes = vec![self.term()?];
        while self.take_word("and") {
            nodes.push(self.term()?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Every(nodes) })
    }

    fn term(&mut self) -> Result<Node, QueryError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("more than {DEPTH_MAX} levels of parentheses")));
        }
        let node = if self.take_word("not") {
            Node::Not(Box::new(self.term()?))
        } else if self.take_sign("(") {
            let inner = self.any()?;
            if !self.take_sign(")") {
                return Err(self.expected("')'"));
            }
            inner
        } else {
            let field = self.field()?;
            Node::Compare(field, self.comparison()?)
        };
        self.depth -= 1;
        Ok(node)
    }

    fn field(&mut self) -> Result<Field, QueryError> {
        let what = "attributes.NAME, client.id or user";
        let Some(Token::Word(word)) = self.peek() else { return Err(self.expected(what)) };
        let field = match word.as_str() {
            "client.id" => Field::ClientId,
            "user" | "authenticationName" => Field::Username,
            _ => match word.strip_prefix("attributes.") {
                Some(name) if !name.is_empty() => Field::Attribute(name.into()),
                _ => return Err(self.expected(what)),
            },
        };
        self.next += 1;
        Ok(field)
    }

    fn comparison(&mut self) -> Result<Comparison, QueryError> {
        if self.take_word("not") {
            if !self.take_word("in") {
                return Err(self.expected("'in'"));
            }
            return Ok(Comparison::NotAmong(self.values()?));
        }
        if self.take_word("in") {
            return Ok(Comparison::Among(self.values()?));
        }
        let Some(Token::Sign(sign)) = self.peek() else {
            return Err(self.expected("a comparison, as = or in [...]"));
        };
        let order = match *sign {
            "=" | "==" | "!=" | "<>" => None,
            "<" => Some(Order::Less),
            "<=" => Some(Order::AtMost),
            ">" => Some(Order::More),
            ">=" => Some(Order::AtLeast),
            _ => return Err(self.expected("a comparison, as = or in [...]")),
        };
        let is_negative = matches!(*sign, "!=" | "<>");
        self.next += 1;
        let Some(order) = order else {
            let values = vec![self.value()?];
            let negative = Comparison::NotAmong;
            return Ok(if is_negative { negative(values) } else { Comparison::Among(values) });
        };
        match self.peek() {
            Some(Token::Number(limit)) => {
                let limit = *limit;
                self.next += 1;
                Ok(Comparison::Ordered(order, limit))
            }
            _ => Err(self.expected("a number: only numbers have an order")),
        }
    }

    fn values(&mut self) -> Result<Vec<Value>, QueryError> {
        if !self.take_sign("[") {
            return Err(self.expected("'['"));
        }
        let mut values = vec![self.value()?];
        while self.take_sign(",") {
            values.push(self.value()?);
        }
        if !self.take_sign("]") {
            return Err(self.expected("',' or ']'"));
        }
        Ok(values)
    }

    fn value(&mut self) -> Result<Value, QueryError> {
        match self.take() {
            Some(Token::Text(text)) => Ok(Value::Text(text.into())),
            Some(Token::Number(number)) => Ok(Value::Number(number)),
            other => {
                self.next -= usize::from(other.is_some());
                Err(self.expected("a text in quotes or a number"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Attributes, Principal};

    fn holds_for(query: &str, username: Option<&str>, attributes: Attributes) -> bool {
        let principal = Principal { attributes, ..Principal::default() };
        let who = Identity { principal: Some(&principal), ..Identity::new("c1", username) };
        Query::parse(query).expect(query).holds(who)
    }

    fn attributes() -> Attributes {
        let text = |text: &str| Attribute::Text(text.into());
        Attributes::new([
            ("type".into(), text("sensor")),
            ("floor".into(), Attribute::Number(5.into())),
            ("can".into(), Attribute::List([text("motion"), text("light")].into())),
        ])
    }

    fn holds(query: &str) -> bool {
        holds_for(query, Some("anna"), attributes())
    }

    #[test]
    fn queries_are_answered() {
        for query in [
            "attributes.type = 'sensor'",
            "attributes.type == \"sensor\" AND attributes.floor <= 5",
            "attributes.type in [\"vehicle\", \"sensor\"] and attributes.floor > 3",
            "attributes.can IN ['motion', 'heat']",
            "attributes.can = 'light' and attributes.can != 'heat'",
            "attributes.can not in ['heat', 7]",
            "client.id = 'c1' and user <> 'bob' and authenticationName = 'anna'",
            "attributes.none = 1 or attributes.floor >= 5",
            "not attributes.none = 1",
            "attributes.floor = 5.0 and attributes.floor > -1e3",
            // `and` binds tighter.
            "user = 'anna' or user = 'x' and user = 'y'",
        ] {
            assert!(holds(query), "{query}");
        }
        for query in [
            "attributes.none != 'x'",
            "attributes.none not in ['x']",
            "attributes.type > 1",
            "attributes.can < 9",
            "attributes.floor = '5'",
            "attributes.floor < 5",
            "attributes.can != 'light'",
            "(user = 'anna' or user = 'x') and user = 'y'",
            "client.id in ['c2']",
            "user < 3",
        ] {
            assert!(!holds(query), "{query}");
        }
    }

    #[test]
    fn a_number_is_not_its_neighbour() {
        let number = Number::parse("9007199254740993").unwrap();
        let attributes = Attributes::new([("id".into(), Attribute::Number(number))]);
        for (query, expected) in [
            ("attributes.id = 9007199254740993", true),
            ("attributes.id = 9007199254740993.0", true),
            ("attributes.id = 9007199254740992", false),
            ("attributes.id in [9007199254740992, 9007199254740994]", false),
            ("attributes.id > 9007199254740992", true),
            ("attributes.id < 9007199254740993.1", true),
        ] {
            assert_eq!(holds_for(query, None, attributes.clone()), expected, "{query}");
        }
    }

    #[test]
    fn who_has_no_name_is_in_no_group_by_name() {
        for query in ["user = 'anna'", "user != 'anna'", "user not in ['anna']"] {
            assert!(!holds_for(query, None, attributes()), "{query}");
        }
    }

    #[test]
    fn what_is_no_query_is_reported_with_its_place() {
        for (query, at, expected) in [
            ("", 0, "found the end"),
            ("floor = 1", 0, "attributes.NAME"),
            ("attributes. = 1", 0, "attributes.NAME"),
            ("attributes.floor", 16, "comparison"),
            ("attributes.floor = ", 19, "found the end"),
            ("attributes.floor = five", 19, "in quotes"),
            ("attributes.floor < 'five'", 19, "a number"),
            ("attributes.floor in 'five'", 20, "'['"),
            ("attributes.floor in [1", 22, "']'"),
            ("attributes.floor not = 1", 21, "'in'"),
            ("(user = 'a'", 11, "')'"),
            ("user = 'a' user = 'b'", 11, "'and'"),
            ("user = 'a", 7, "no end"),
            ("user = 1x", 7, "must be a number"),
            ("attributes.floor = 1e400", 19, "must be a number"),
            ("attributes.floor = 007", 19, "must be a number"),
            ("user = §", 7, "unexpected"),
        ] {
            let error = Query::parse(query).expect_err(query);
            assert_eq!(error.at, at, "{query}: {error}");
            assert!(error.to_string().contains(expected), "{query}: {error}");
        }
        assert!(Query::parse(&"(".repeat(100)).is_err());
        assert!(Query::parse(&"not ".repeat(100)).is_err());
        assert!(Query::parse(&"x".repeat(QUERY_BYTES_MAX + 1)).is_err());
        // Beside each other there may be many.
        assert!(Query::parse(&vec!["user = 'a'"; 100].join(" or ")).is_ok());
    }

    #[test]
    fn its_attributes_are_known() {
        let query = Query::parse("attributes.a = 1 and not (user = 'x' or attributes.b-c > 2)");
        assert_eq!(query.unwrap().attributes(), ["a", "b-c"]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "([a-z.]{0,12}|[ '\"<>=!,()\\[\\]0-9-]{0,4}| and | or |\\PC){0,20}") {
            if let Ok(query) = Query::parse(&text) {
                let _ = query.holds(Identity::new("c", None));
            }
        }
    }
}
