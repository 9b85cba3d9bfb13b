//! Texts in code: string literals of several words, and comments that become help.
//!
//! Works on tokens, as most texts are arguments of macros. Tests, messages of assertions and all
//! other attributes and comments are left out.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Literal, TokenStream, TokenTree};
use syn::LitStr;

/// A text and the line on which it begins.
#[derive(Debug, PartialEq)]
pub(crate) struct Text {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// Attributes whose strings are shown.
const SHOWN_ATTRIBUTES: [&str; 5] = ["arg", "command", "clap", "error", "value"];

/// Derives that make help out of comments.
const HELP_DERIVES: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];

/// Macros that make the configuration reference and the description of the API out of comments.
const HELP_MACROS: [&str; 3] = ["record", "settings", "words"];

/// Calls and macros whose strings only a developer reads.
const INTERNAL_CALLS: [&str; 9] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "expect",
    "panic",
    "unreachable",
];

/// The texts of a source file.
pub(crate) fn texts(source: &str) -> Result<Vec<Text>> {
    let tokens = source.parse::<TokenStream>().map_err(|error| anyhow!("{error}"))?;
    let mut walk = Walk::default();
    walk.level(tokens, false);
    Ok(walk.found)
}

#[derive(Default)]
struct Walk {
    found: Vec<Text>,
}

/// What the attributes ahead of an item say about it.
#[derive(Default)]
struct Item {
    docs: Vec<Text>,
    is_help: bool,
    is_test: bool,
}

impl Walk {
    /// The tokens between two delimiters; `is_help`: comments become help.
    fn level(&mut self, tokens: TokenStream, is_help: bool) {
        let mut item = Item::default();
        let mut last = [const { String::new() }; 2];
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            if is_punct(&token, '#') {
                tokens.next_if(|next| is_punct(next, '!'));
                if let Some(TokenTree::Group(attribute)) = tokens.peek()
                    && attribute.delimiter() == Delimiter::Bracket
                {
                    self.attribute(&attribute.stream(), &mut item);
                    tokens.next();
                    continue;
                }
            }
            let is_end = match &token {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(punct) => matches!(punct.as_char(), ';' | ','),
                TokenTree::Ident(_) | TokenTree::Literal(_) => false,
            };
            if is_help || item.is_help {
                self.docs(std::mem::take(&mut item.docs));
            }
            item.docs.clear();
            if !item.is_test {
                self.token(&token, &last, is_help || item.is_help);
            }
            if is_end {
                item = Item::default();
            }
            let token = match token {
                TokenTree::Group(_) | TokenTree::Literal(_) => String::new(),
                token => token.to_string(),
            };
            last = [std::mem::take(&mut last[1]), token];
        }
    }

    fn token(&mut self, token: &TokenTree, last: &[String; 2], is_help: bool) {
        match token {
            TokenTree::Group(group) => {
                let callee = if last[1] == "!" { &last[0] } else { &last[1] };
                let is_call = group.delimiter() == Delimiter::Parenthesis;
                if !(is_call && INTERNAL_CALLS.contains(&callee.as_str())) {
                    let is_reference = last[1] == "!" && HELP_MACROS.contains(&callee.as_str());
                    self.level(group.stream(), is_help || is_reference);
                }
            }
            TokenTree::Literal(literal) => self.found.extend(text_of(literal)),
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }

    fn attribute(&mut self, content: &TokenStream, item: &mut Item) {
        let mut tokens = content.clone().into_iter();
        let name = tokens.next().map(|name| name.to_string()).unwrap_or_default();
        match name.as_str() {
            "doc" => {
                if let Some(TokenTree::Literal(literal)) = tokens.nth(1) {
                    item.docs.extend(string_of(&literal));
                }
            }
            "test" => item.is_test = true,
            "cfg" => item.is_test |= content.to_string().replace(' ', "").contains("(test"),
            "derive" => item.is_help |= tokens.any(|token| has_help_derive(&token)),
            name if SHOWN_ATTRIBUTES.contains(&name) => self.level(tokens.collect(), false),
            _ => {}
        }
    }

    /// The lines of one comment, joined.
    fn docs(&mut self, docs: Vec<Text>) {
        let mut docs = docs.into_iter();
        let Some(mut joined) = docs.next() else { return };
        for doc in docs {
            joined.text.push('\n');
            joined.text.push_str(&doc.text);
        }
        self.found.push(joined);
    }
}

fn has_help_derive(token: &TokenTree) -> bool {
    let is_help = |token: TokenTree| HELP_DERIVES.contains(&token.to_string().as_str());
    matches!(token, TokenTree::Group(names) if names.stream().into_iter().any(is_help))
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// A string that is more than a name.
fn text_of(literal: &Literal) -> Option<Text> {
    let text = string_of(literal)?;
    let is_word = |word: &&str| word.chars().all(|c| c.is_alphabetic() || ",.:;'-".contains(c));
    (text.text.split_whitespace().filter(is_word).count() >= 2).then_some(text)
}

fn string_of(literal: &Literal) -> Option<Text> {
    let line = literal.span().start().line;
    let string = syn::parse2::<LitStr>(TokenTree::from(literal.clone()).into()).ok()?;
    Some(Text { line, text: string.value() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(source: &str) -> Vec<(usize, String)> {
        let found = texts(source).expect("the source is Rust");
        found.into_iter().map(|text| (text.line, text.text)).collect()
    }

    #[test]
    fn strings_of_macros_attributes_and_tables_are_texts() {
        let source = r#"
            #[error("disk is full: {0}")]
            struct Full;
            fn f() {
                warn!(address = %a, "client \
                    disconnected");
                let _ = [vec![format!("no such {name} here")], "name"];
            }
        "#;
        let texts = ["disk is full: {0}", "client disconnected", "no such {name} here"];
        let expected: Vec<_> = [2, 5, 7].into_iter().zip(texts.map(str::to_owned)).collect();
        assert_eq!(found_in(source), expected);
    }

    #[test]
    fn comments_are_texts_where_they_become_help() {
        let source = r"
            /// Connects a client.
            ///
            /// And waits.
            #[derive(Debug, Parser)]
            struct Options {
                /// Port of the broker.
                port: u16,
            }
            /// Not shown at all.
            struct Other;
            settings! {
                /// Size of a queue.
                Queue {}
            }
        ";
        let expected = [
            (2, " Connects a client.\n\n And waits.".to_owned()),
            (7, " Port of the broker.".to_owned()),
            (13, " Size of a queue.".to_owned()),
        ];
        assert_eq!(found_in(source), expected);
    }

    #[test]
    fn tests_assertions_and_other_attributes_are_no_texts() {
        let source = r#"
            #![expect(dead_code, reason = "a long reason")]
            fn f() {
                assert!(a, "a is always b");
                b.expect("b is there");
            }
            #[cfg(test)]
            mod tests {
                const TEXT: &str = "some longer text";
            }
            const LAST: &str = "is the last";
        "#;
        assert_eq!(found_in(source), [(11, "is the last".to_owned())]);
    }
}
