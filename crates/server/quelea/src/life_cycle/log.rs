//! Events as log lines.

use serde_json::Value as Json;
use tracing::{Level, Value, field};

use super::Happened;
use base::shown;
use config::namespaces::DEFAULT;

macro_rules! lines {
    ($level:expr, $text:expr, $of:ident, $($field:ident)+) => {
        match $level {
            Level::ERROR => tracing::error!($($field = $of(stringify!($field)),)+ "{}", $text),
            Level::WARN => tracing::warn!($($field = $of(stringify!($field)),)+ "{}", $text),
            Level::INFO => tracing::info!($($field = $of(stringify!($field)),)+ "{}", $text),
            _ => tracing::debug!($($field = $of(stringify!($field)),)+ "{}", $text),
        }
    };
}

impl Happened<'_> {
    /// Writes its line, if its kind has one. Fields without a value and the default namespace are
    /// left out.
    pub(crate) fn log(&self) {
        let Some((level, text)) = self.kind.line else { return };
        if level > tracing::level_filters::LevelFilter::current() {
            return;
        }
        let of = |name: &str| value(name, self.data.get(name)?);
        lines!(level, text, of, namespace bridge client_id username address listener provider node
            role before by epoch active shard shards protocol keep_alive_secs session_present group
            action direction topic filter rule stream state run first next attempts dead_letter
            kind who until reason limit detail count messages
            bytes left secs suspended_secs unavailable_secs version expires_at days_left);
    }
}

fn value(name: &str, json: &Json) -> Option<Box<dyn Value>> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(it) => Box::new(*it),
        Json::String(it) if it.is_empty() || name == "namespace" && it == DEFAULT => return None,
        // Sentences of the broker; all others may be texts that a client chose.
        Json::String(it) if name == "detail" => Box::new(it.clone()),
        Json::String(it) => Box::new(shown(it).into_owned()),
        Json::Number(it) => match it.as_u64() {
            Some(whole) => Box::new(whole),
            None => Box::new(it.as_f64()),
        },
        other => Box::new(field::display(other.clone())),
    })
}
