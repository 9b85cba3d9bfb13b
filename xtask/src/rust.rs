//! Just enough Rust to measure it: lines of code without tests, and the length of functions.
//! Relies on the code being formatted: an item ends at a closing brace of its own indentation.

/// A function and the number of lines from its `fn` to its closing brace.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

/// The lines of a file up to its tests.
pub(crate) fn without_tests(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines.take_while(|line| !line.starts_with("#[cfg(test)]")).collect()
}

/// Every function of some lines, the nested ones too.
pub(crate) fn functions(lines: &[&str]) -> Vec<Function> {
    let mut functions = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = indentation(line);
        let is_end =
            |line: &&str| indentation(line) == indent && line.trim_start().starts_with('}');
        if line.trim_end().ends_with(['}', ';']) {
            continue;
        }
        // A signature that ends without a body has a line that ends in a semicolon.
        let signature_end =
            lines[index..].iter().position(|l| l.ends_with('{') || l.ends_with(';'));
        if signature_end.is_none_or(|end| lines[index + end].ends_with(';')) {
            continue;
        }
        if let Some(end) = lines[index + 1..].iter().position(is_end) {
            functions.push(Function { name: name.to_owned(), line: index + 1, lines: end + 2 });
        }
    }
    functions
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    rest.find(['(', '<']).map(|end| &rest[..end])
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured() {
        let text = [
            "impl A {",
            "    pub fn long(",
            "        &self,",
            "    ) -> u8 {",
            "        1",
            "    }",
            "",
            "    fn short() {}",
            "}",
            "",
            "fn last<T>() {",
            "    loop {",
            "    }",
            "}",
            "#[cfg(test)]",
            "fn not_counted() {",
            "}",
        ];
        let functions = functions(&without_tests(&text.join("\n")));
        let found: Vec<_> = functions.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(found, [("long", 2, 5), ("last", 11, 4)]);
    }
}
