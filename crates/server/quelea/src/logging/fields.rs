//! The fields of a line of text: `name=value`, in quotes where a value would not end by itself.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Writes the message as it is, and the other fields behind it as logfmt has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotedFields;

impl<'writer> FormatFields<'writer> for QuotedFields {
    fn format_fields<R: RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut line = Line { writer: &mut writer, is_begun: false, result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'a, 'writer> {
    writer: &'a mut Writer<'writer>,
    is_begun: bool,
    result: fmt::Result,
}

impl Line<'_, '_> {
    fn put(&mut self, field: &Field, value: &str) -> fmt::Result {
        if std::mem::replace(&mut self.is_begun, true) {
            self.writer.write_char(' ')?;
        }
        if field.name() == "message" {
            return self.writer.write_str(value);
        }
        let (on, off) = if self.writer.has_ansi_escapes() { (DIM, PLAIN) } else { ("", "") };
        write!(self.writer, "{on}{}={off}", field.name())?;
        if ends_by_itself(value) {
            self.writer.write_str(value)
        } else {
            write!(self.writer, "{value:?}")
        }
    }
}

impl Visit for Line<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if self.result.is_ok() {
            self.result = self.put(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

fn ends_by_itself(value: &str) -> bool {
    let ends = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '=' | '\\');
    !value.is_empty() && !value.contains(ends)
}

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn line(log: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .fmt_fields(QuotedFields)
            .with_ansi(false)
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = sink.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn values_are_quoted_where_they_would_not_end_by_themselves() {
        let error = io::Error::other("no space left");
        let written = line(|| {
            let (client, count) = ("my client", 3);
            tracing::info!(client, count, plain = "a/b", %error, kind = ?error.kind(), "it failed");
        });
        let expected = "it failed client=\"my client\" count=3 plain=a/b \
                        error=\"no space left\" kind=Other\n";
        assert_eq!(written, expected);
    }

    #[test]
    fn a_value_cannot_pretend_to_be_another_field_or_line() {
        for value in ["", "a client=b", "a=b", "a\nb", "\"", "a\\b", "\u{7f}"] {
            let written = line(|| tracing::info!(%value, "m"));
            assert_eq!(written, format!("m value={value:?}\n"));
        }
    }
}
