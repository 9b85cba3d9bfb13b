//! Lists, page by page, over all shards.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use broker::command::Page;
use broker::{Answer, Command, Scope, ShardId};
use web::axum::http::StatusCode;

use super::Api;
use super::call::Call;
use super::problem::Problem;
use super::schema::Rows;

/// Pages that are asked of shards for one answer: where few rows meet a filter, the answer is
/// short, and the caller asks on.
const PAGES_MAX: usize = 100;

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot<P> {
    pub(crate) shard: ShardId,
    pub(crate) place: P,
}

/// A place within a shard, as text of a cursor.
pub(crate) trait Mark: Default + Clone {
    fn write(&self) -> String;
    fn read(text: &str) -> Option<Self>;
}

impl Mark for u32 {
    fn write(&self) -> String {
        self.to_string()
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A topic of a namespace; none: its begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TopicMark {
    pub(crate) scope: Scope,
    pub(crate) after: Option<Vec<u8>>,
}

impl Mark for TopicMark {
    fn write(&self) -> String {
        let after = self.after.as_deref();
        let topic = after.map_or_else(String::new, |topic| BASE64_URL_SAFE_NO_PAD.encode(topic));
        format!("{}.{topic}", self.scope.number())
    }

    fn read(text: &str) -> Option<Self> {
        let (number, topic) = text.split_once('.')?;
        let scope = Scope::new(number.parse().ok()?);
        let after = match topic {
            "" => None,
            topic => Some(BASE64_URL_SAFE_NO_PAD.decode(topic).ok()?),
        };
        Some(Self { scope, after })
    }
}

impl<P: Mark> Spot<P> {
    /// Where a call begins.
    pub(crate) fn of(call: &Call, shards: ShardId) -> Result<Self, Problem> {
        let Some(text) = call.text("cursor") else {
            return Ok(Self { shard: 0, place: P::default() });
        };
        let spot = text.split_once('.').and_then(|(shard, place)| {
            Some(Self { shard: shard.parse().ok()?, place: P::read(place)? })
        });
        spot.filter(|spot| spot.shard < shards).ok_or_else(|| bad_cursor(text))
    }

    pub(crate) fn write(&self) -> String {
        format!("{}.{}", self.shard, self.place.write())
    }
}

impl Api {
    /// Rows of all shards, from where the call says.
    pub(crate) async fn collect<P: Mark, V, T>(
        &self,
        call: &Call,
        ask: impl Fn(&P, u32) -> (Scope, Command),
        read: impl Fn(&P, Answer) -> Option<(Vec<V>, Option<P>)>,
        row: impl Fn(V) -> T,
    ) -> Result<Rows<T>, Problem> {
        let mut spot = Spot::<P>::of(call, self.shards.count())?;
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let max = (call.limit() - items.len()) as u32;
            let (scope, command) = ask(&spot.place, max);
            let answer = self.shards.ask(spot.shard, scope, command).await?;
            let (rows, next) = read(&spot.place, answer).ok_or_else(other_answer)?;
            items.extend(rows.into_iter().map(&row));
            match next {
                Some(place) => spot.place = place,
                None => spot = Spot { shard: spot.shard + 1, place: P::default() },
            }
            if spot.shard == self.shards.count() {
                return Ok(Rows { items, cursor: None });
            }
            if items.len() >= call.limit() {
                break;
            }
        }
        Ok(Rows { items, cursor: Some(spot.write()) })
    }

    /// Rows of one shard, from where the call says.
    pub(crate) async fn collect_one<V>(
        &self,
        call: &Call,
        (shard, scope): (ShardId, Scope),
        ask: impl Fn(u32, u32) -> Command,
        read: impl Fn(Answer) -> Result<Page<V>, Problem>,
    ) -> Result<Rows<V>, Problem> {
        let Spot { mut place, .. } = Spot::<u32>::of(call, self.shards.count())?;
        let mut items = Vec::new();
        loop {
            let max = (call.limit() - items.len()) as u32;
            let page = read(self.shards.ask(shard, scope, ask(place, max)).await?)?;
            items.extend(page.rows);
            let Some(next) = page.next else { return Ok(Rows { items, cursor: None }) };
            place = next;
            if items.len() >= call.limit() {
                return Ok(Rows { items, cursor: Some(Spot { shard, place }.write()) });
            }
        }
    }
}

/// Nothing that a list has answered.
pub(crate) fn bad_cursor(text: &str) -> Problem {
    let detail = format!("must be the cursor of a previous answer, got '{text}'");
    let fix = "use the cursor of an answer to the same query, or omit it";
    Problem::bad("query parameter cursor", detail).fix(fix)
}

/// A shard answers what it was asked; else that is a mistake of ours.
pub(crate) fn other_answer() -> Problem {
    let detail = "internal error: unexpected answer of a shard";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written() {
        for place in [0, 7, u32::MAX] {
            assert_eq!(u32::read(&place.write()), Some(place));
        }
        for (number, after) in [(0, None), (65_535, Some(b"a/\xff".to_vec()))] {
            let mark = TopicMark { scope: Scope::new(number), after };
            assert_eq!(TopicMark::read(&mark.write()), Some(mark));
        }
        assert_eq!(u32::read("-1"), None);
        for wrong in ["", "1", "65536.", "1.a/b"] {
            assert_eq!(TopicMark::read(wrong), None, "{wrong}");
        }
    }
}
