//! The part of HOCON that configurations of EMQX are written in: objects, arrays, quoted and plain
//! texts, comments, paths as keys. Substitutions, includes and concatenations are errors. JSON is
//! a part of it.

use std::collections::HashMap;

/// A value, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Object(Entries),
    Array(Vec<Node>),
    /// Numbers and flags are texts.
    Text(String),
}

/// The keys and values of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    /// In the order of the file.
    list: Vec<(String, Node)>,
    index: HashMap<String, usize>,
}

impl Entries {
    fn get(&self, key: &str) -> Option<&Node> {
        self.index.get(key).map(|at| &self.list[*at].1)
    }
}

/// A line, and what is wrong there.
pub(crate) type Mistake = (usize, String);

impl Node {
    fn object(line: usize) -> Self {
        Self { line, value: Value::Object(Entries::default()) }
    }

    /// What a path leads to.
    pub(crate) fn get(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, key| match &node.value {
            Value::Object(entries) => entries.get(key),
            Value::Array(_) | Value::Text(_) => None,
        })
    }

    /// Of an object; else none.
    pub(crate) fn entries(&self) -> &[(String, Self)] {
        match &self.value {
            Value::Object(entries) => &entries.list,
            Value::Array(_) | Value::Text(_) => &[],
        }
    }

    /// Of an array, or the value itself.
    pub(crate) fn items(&self) -> &[Self] {
        match &self.value {
            Value::Array(items) => items,
            Value::Object(_) | Value::Text(_) => std::slice::from_ref(self),
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Object(_) | Value::Array(_) => None,
        }
    }

    /// Objects are merged; all else is replaced.
    fn put(&mut self, path: &[String], new: Self) -> Result<(), Mistake> {
        let line = new.line;
        let Some((key, rest)) = path.split_first() else {
            match (&self.value, &new.value) {
                (Value::Object(_), Value::Object(_)) => {
                    let Value::Object(entries) = new.value else { return Ok(()) };
                    for (key, node) in entries.list {
                        self.put(&[key], node)?;
                    }
                }
                _ => *self = new,
            }
            return Ok(());
        };
        if !matches!(self.value, Value::Object(_)) {
            *self = Self::object(line);
        }
        let Value::Object(entries) = &mut self.value else { return Ok(()) };
        match entries.index.get(key) {
            Some(at) => entries.list[*at].1.put(rest, new),
            None => {
                let mut node = Self::object(line);
                let put = if rest.is_empty() {
                    node = new;
                    Ok(())
                } else {
                    node.put(rest, new)
                };
                entries.index.insert(key.clone(), entries.list.len());
                entries.list.push((key.clone(), node));
                put
            }
        }
    }
}

/// Reads a whole file.
pub(crate) fn parse(text: &str) -> Result<Node, Mistake> {
    read(text, false)
}

/// Reads JSON. A key that is there twice is a mistake.
pub(crate) fn parse_json(text: &str) -> Result<Node, Mistake> {
    read(text, true)
}

fn read(text: &str, is_json: bool) -> Result<Node, Mistake> {
    let mut reader = Reader { rest: text, line: 1, nodes: 0, is_json };
    reader.skip();
    let has_braces = reader.take("{");
    let root = reader.object(has_braces, 0)?;
    reader.skip();
    match reader.rest {
        "" => Ok(root),
        _ => Err((reader.line, "there is text behind the last brace".into())),
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    nodes: usize,
    is_json: bool,
}

impl Reader<'_> {
    fn fail<T>(&self, detail: impl Into<String>) -> Result<T, Mistake> {
        Err((self.line, detail.into()))
    }

    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn advance(&mut self, bytes: usize) -> String {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken.into()
    }

    /// White space and comments, line breaks among them.
    fn skip(&mut self) {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.advance(blank);
            if !self.skip_comment() {
                return;
            }
        }
    }

    fn skip_comment(&mut self) -> bool {
        let is_comment = self.rest.starts_with('#') || self.rest.starts_with("//");
        if is_comment {
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
        is_comment
    }

    fn skip_blanks(&mut self) {
        let is_blank = |letter: char| letter.is_whitespace() && letter != '\n';
        let rest = self.rest.trim_start_matches(is_blank);
        self.rest = rest;
    }

    fn object(&mut self, has_braces: bool, depth: usize) -> Result<Node, Mistake> {
        if depth > DEPTH_MAX {
            return self.fail(format!("more than {DEPTH_MAX} levels"));
        }
        let mut object = Node::object(self.line);
        loop {
            self.skip();
            while self.take(",") {
                self.skip();
            }
            if self.rest.is_empty() {
                return match has_braces {
                    true => self.fail("a brace is not closed"),
                    false => Ok(object),
                };
            }
            if self.rest.starts_with('}') {
                if has_braces {
                    self.take("}");
                    return Ok(object);
                }
                return self.fail("a closing brace without an opening one");
            }
            let path = self.path()?;
            self.skip();
            if self.take("+=") {
                return self.fail("`+=` is not supported: write the whole array");
            }
            let has_sign = self.take("=") || self.take(":");
            self.skip();
            if !has_sign && !self.rest.starts_with('{') {
                return self.fail(format!("'{}' needs a value", path.join(".")));
            }
            let value = self.value(depth)?;
            self.end_of_value()?;
            if self.is_json && object.get(&path.join(".")).is_some() {
                return self.fail(format!("'{}' is there twice", path.join(".")));
            }
            object.put(&path, value)?;
        }
    }

    /// Something may follow a value on its line only behind a comma.
    fn end_of_value(&mut self) -> Result<(), Mistake> {
        self.skip_blanks();
        self.skip_comment();
        match self.rest.chars().next() {
            None | Some('\n' | ',' | '}' | ']') => Ok(()),
            Some(_) => self.fail("two values on one line: joining them is not supported"),
        }
    }

    fn path(&mut self) -> Result<Vec<String>, Mistake> {
        let mut path = Vec::new();
        loop {
            let part = if self.rest.starts_with('"') {
                self.quoted()?
            } else {
                let is_end =
                    |letter: char| !(letter.is_alphanumeric() || "_-$/*@".contains(letter));
                let end = self.rest.find(is_end).unwrap_or(self.rest.len());
                self.advance(end)
            };
            if part.is_empty() {
                return self.fail("a key is expected here");
            }
            if path.is_empty() && part == "include" && !self.rest.starts_with(['=', ':', '.']) {
                return self.fail("`include` is not supported: import one file with all options");
            }
            path.push(part);
            if path.len() > DEPTH_MAX {
                return self.fail(format!("more than {DEPTH_MAX} levels"));
            }
            if !self.take(".") {
                return Ok(path);
            }
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, Mistake> {
        self.nodes += 1;
        let most = if self.is_json { JSON_NODES_MAX } else { NODES_MAX };
        if self.nodes > most {
            return self.fail(format!("more than {most} values"));
        }
        let line = self.line;
        if self.take("{") {
            let object = self.object(true, depth + 1)?;
            return Ok(Node { line, ..object });
        }
        let value = match self.take("[") {
            true => Value::Array(self.array(depth + 1)?),
            false if self.rest.starts_with('"') => Value::Text(self.quoted()?),
            false => Value::Text(self.plain()?),
        };
        Ok(Node { line, value })
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Node>, Mistake> {
        if depth > DEPTH_MAX {
            return self.fail(format!("more than {DEPTH_MAX} levels"));
        }
        let mut items = Vec::new();
        loop {
            self.skip();
            while self.take(",") {
                self.skip();
            }
            if self.take("]") {
                return Ok(items);
            }
            if self.rest.is_empty() {
                return self.fail("a bracket is not closed");
            }
            items.push(self.value(depth)?);
            self.end_of_value()?;
        }
    }

    fn plain(&mut self) -> Result<String, Mistake> {
        let end = self.rest.find(['\n', ',', '}', ']', '#']).unwrap_or(self.rest.len());
        let text = self.rest[..end].trim().to_owned();
        if text.is_empty() {
            return self.fail("a value is expected here");
        }
        if text.contains("${") {
            return self.fail("substitutions are not supported: write the value");
        }
        if text.contains("//") || text.contains(['"', '{', '[']) {
            return self.fail(format!("'{text}' must be quoted"));
        }
        self.advance(end);
        Ok(text)
    }

    fn quoted(&mut self) -> Result<String, Mistake> {
        if self.take("\"\"\"") {
            let Some(end) = self.rest.find("\"\"\"") else {
                return self.fail("a text has no closing \"\"\"");
            };
            let text = self.advance(end);
            self.take("\"\"\"");
            return Ok(without_margin(&text));
        }
        self.take("\"");
        let mut text = String::new();
        loop {
            let Some(letter) = self.rest.chars().next() else {
                return self.fail("a text has no closing quotation mark");
            };
            self.advance(letter.len_utf8());
            match letter {
                '"' => return Ok(text),
                '\n' => return Err((self.line - 1, "a text has no closing quotation mark".into())),
                '\\' => text.push(self.escape()?),
                letter => text.push(letter),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Mistake> {
        let letter = self.rest.chars().next().unwrap_or(' ');
        self.advance(letter.len_utf8().min(self.rest.len()));
        Ok(match letter {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => return self.unicode(),
            '"' | '\\' | '/' => letter,
            other => return self.fail(format!("unknown escape '\\{other}'")),
        })
    }
}

impl Reader<'_> {
    /// What follows `\u`: four digits, and for a character beyond them `\u` with four more.
    fn unicode(&mut self) -> Result<char, Mistake> {
        let mut units = vec![self.unit()?];
        if (0xD800..0xDC00).contains(&units[0]) && self.take("\\u") {
            units.push(self.unit()?);
        }
        match char::decode_utf16(units).next() {
            Some(Ok(letter)) => Ok(letter),
            _ => self.fail("half of a character behind \\u"),
        }
    }

    fn unit(&mut self) -> Result<u16, Mistake> {
        let digits =
            self.rest.get(..4).filter(|text| text.bytes().all(|it| it.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        match unit {
            Some(unit) => {
                self.advance(4);
                Ok(unit)
            }
            None => self.fail("\\u needs four hexadecimal digits"),
        }
    }
}

/// A text between `"""~` and `~"""` is indented as the lines around it. The line break behind the
/// first mark is kept, so that lines have the numbers that they have in the file.
fn without_margin(text: &str) -> String {
    let Some(inner) = text.strip_prefix('~').filter(|inner| inner.starts_with('\n')) else {
        return text.into();
    };
    let inner = inner.strip_suffix('~').unwrap_or(inner).trim_end_matches(' ');
    let filled = inner.lines().filter(|line| !line.trim().is_empty());
    let margin = filled.map(|line| line.len() - line.trim_start_matches(' ').len()).min();
    let margin = margin.unwrap_or(0);
    let lines = inner.lines().map(|line| line.get(margin..).unwrap_or("").to_owned() + "\n");
    lines.collect()
}

/// Deeper than any option.
const DEPTH_MAX: usize = 32;

/// More than any configuration has.
const NODES_MAX: usize = 100_000;

/// A hundred thousand clients have so many.
const JSON_NODES_MAX: usize = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(text: &str, path: &str) -> String {
        parse(text).unwrap().get(path).unwrap().text().unwrap().into()
    }

    #[test]
    fn objects_are_merged_and_values_replaced() {
        let text =
            "# c\na.b.c = 1\na { b { d = \"x # y\" }, e : [1, {f = 2}\n 3,] } // c\na.b.c = 2s\n";
        assert_eq!(text_of(text, "a.b.c"), "2s");
        assert_eq!(text_of(text, "a.b.d"), "x # y");
        let root = parse(text).unwrap();
        let items = root.get("a.e").unwrap().items();
        assert_eq!(items.len(), 3);
        assert_eq!((items[1].get("f").unwrap().line, items[2].line), (2 + 1, 4));
        assert_eq!(parse("{ \"a.b\" = yes }").unwrap().entries()[0].0, "a.b");
    }

    #[test]
    fn texts_of_many_lines_lose_their_margin() {
        let text = "r = \"\"\"~\n    {allow, all}.\n      x\n  ~\"\"\"\nq = \"\"\"a\"b\"\"\"\n";
        assert_eq!(text_of(text, "r"), "\n{allow, all}.\n  x\n");
        assert_eq!(text_of(text, "q"), "a\"b");
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for (text, line, what) in [
            ("a = 1\nb {", 2, "not closed"),
            ("a = ${x}", 1, "substitutions"),
            ("a += 1", 1, "`+=`"),
            ("\ninclude \"x\"", 2, "`include`"),
            ("a = \"x\ny\"", 1, "closing quotation mark"),
            ("a = \"x\" y", 1, "joining"),
            ("a = http://x", 1, "quoted"),
            ("a = \"\\q\"", 1, "escape"),
            ("a = [1", 1, "bracket"),
            ("}", 1, "closing brace"),
            ("a", 1, "needs a value"),
            ("= 1", 1, "a key"),
        ] {
            let (at, detail) = parse(text).unwrap_err();
            assert!(at == line && detail.contains(what), "{text}: {at} {detail}");
        }
        let deep = "a {".repeat(40);
        assert!(parse(&deep).unwrap_err().1.contains("levels"));
        let long = format!("a = 1\n{}", "b.c = [1, 2]\n".repeat(40_000));
        assert!(parse(&long).unwrap_err().1.contains("more than 100000 values"));
    }
}
