//! Bans: who is kept out until when.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use broker::command::Whom;
use broker::{Answer, Command, Scope};
use serde_json::json;
use web::axum::http::StatusCode;

use super::asked::Asked;
use super::call::Call;
use super::paging::{bad_cursor, other_answer};
use super::problem::Problem;
use super::route::Outcome;
use super::schema::Rows;
use super::views::{Ban, NewBan};
use super::{Api, json as answer, scopes};
use crate::life_cycle::{EventKind, Happened, table};
use base::moment;
use config::namespaces::DEFAULT;
use identity::auth::bans::{BanList, Banned, FOR_EVER, FULL, Lists, Named, NoChange};

pub(crate) fn list(api: &Api, call: &Call) -> Outcome {
    let lists = api.facts.limiter.bans.lists();
    let (mut place, mut after) = start(call)?;
    scopes::of_list(api, call)?;
    let wanted = (call.text("kind"), call.text(scopes::PARAM));
    let now_secs = api.facts.clock.wall_secs();
    let mut items = Vec::new();
    loop {
        let (list, is_own) = if place == 0 { (&lists.own, true) } else { (&lists.file, false) };
        for (banned, until) in rows(list, after.as_ref(), now_secs, wanted) {
            if items.len() == call.limit() {
                return answer(&Rows { items, cursor: Some(cursor(place, after.as_ref())) });
            }
            items.push(view(&banned, until, is_own));
            after = Some(banned);
        }
        if place == 1 {
            return answer(&Rows { items, cursor: None });
        }
        (place, after) = (1, None);
    }
}

/// Those that hold.
fn rows<'a>(
    list: &'a BanList,
    after: Option<&Banned>,
    now_secs: u64,
    (kind, namespace): (Option<&'a str>, Option<&'a str>),
) -> impl Iterator<Item = (Banned, u64)> + use<'a> {
    let is_wanted = move |(banned, until): &(Banned, u64)| {
        *until > now_secs
            && kind.is_none_or(|kind| banned.kind() == kind)
            && namespace.is_none_or(|namespace| banned.holds_in(namespace))
    };
    let behind: Vec<_> = list.behind(after).filter(is_wanted).take(ROWS_MAX).collect();
    behind.into_iter()
}

/// One more than the most rows of an answer.
const ROWS_MAX: usize = super::params::LIMIT_MAX as usize + 1;

fn view(banned: &Banned, until: u64, is_own: bool) -> Ban {
    Ban {
        kind: banned.kind().to_owned(),
        who: banned.who(),
        namespace: banned.namespace().unwrap_or(ALL).to_owned(),
        until: (until != FOR_EVER).then(|| moment::text_of(until)),
        by_hand: !is_own,
    }
}

/// What stands for all namespaces.
const ALL: &str = "*";

/// The list, and the row before the first: `1.client@red.QQ`.
fn cursor(place: u8, after: Option<&Banned>) -> String {
    let row = after.map(|banned| {
        let who = BASE64_URL_SAFE_NO_PAD.encode(banned.who());
        let place = banned.namespace().map(|name| format!("@{name}")).unwrap_or_default();
        format!("{}{place}.{who}", banned.kind())
    });
    format!("{place}.{}", row.unwrap_or_default())
}

fn start(call: &Call) -> Result<(u8, Option<Banned>), Problem> {
    let Some(text) = call.text("cursor") else { return Ok((0, None)) };
    read_cursor(text).ok_or_else(|| bad_cursor(text))
}

fn read_cursor(text: &str) -> Option<(u8, Option<Banned>)> {
    let (place, row) = text.split_once('.')?;
    let place = place.parse().ok().filter(|place| *place <= 1)?;
    if row.is_empty() {
        return Some((place, None));
    }
    let (word, who) = row.rsplit_once('.')?;
    let who = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(who).ok()?).ok()?;
    let banned = match word.split_once('@') {
        Some((kind, name)) => Banned::parse(kind, &who).ok()?.in_namespace(name).ok()?,
        None => Banned::parse(word, &who).ok()?,
    };
    Some((place, Some(banned)))
}

pub(crate) async fn add(api: &Arc<Api>, call: &Call) -> Outcome {
    let NewBan { kind, who, namespace, for_secs, until } = call.body()?;
    let banned = to_ban(api, &kind, &who, namespace.as_deref(), "body")?;
    codec::check_name(&who).map_err(|error| Problem::bad("body, who", error.detail))?;
    let until = end_of(api, for_secs, until.as_deref())?;
    ban(api, call, banned.clone(), until).await?;
    answer(&view(&banned, until, true))
}

/// Whom a request means to ban. A ban of a name holds in all namespaces only if it says so.
pub(crate) fn to_ban(
    api: &Api,
    kind: &str,
    who: &str,
    namespace: Option<&str>,
    place: &str,
) -> Result<Banned, Problem> {
    let bad = |why: String| Problem::bad(place, why);
    let banned = Banned::parse(kind, who).map_err(bad)?;
    let is_name = matches!(banned, Banned::Client(_) | Banned::User(_));
    match namespace {
        Some(ALL) => Ok(banned),
        Some(name) => {
            scopes::known(api, name, place)?;
            banned.in_namespace(name).map_err(bad)
        }
        None if !is_name => Ok(banned),
        None if scopes::are_several(api) => {
            let detail = format!(
                "`namespace` is required: the broker has several namespaces, \
            and this {kind} may be in each"
            );
            let fix = "set `namespace` to the name of one, or to * for all";
            Err(Problem::bad(place, detail).fix(fix))
        }
        None => banned.in_namespace(DEFAULT).map_err(bad),
    }
}

fn end_of(api: &Api, for_secs: Option<u64>, until: Option<&str>) -> Result<u64, Problem> {
    let now_secs = api.facts.clock.wall_secs();
    let end = match (for_secs, until) {
        (None, None) => return Ok(FOR_EVER),
        (Some(secs), None) => Some(now_secs.saturating_add(secs)),
        (None, Some(text)) => moment::secs_of(text),
        (Some(_), Some(_)) => {
            let detail = "`for_secs` and `until` exclude each other: send one of them";
            return Err(Problem::bad("body", detail).fix("omit one of them"));
        }
    };
    end.filter(|end| *end > now_secs).ok_or_else(|| {
        let detail = "must be a time in the future";
        Problem::bad("body", detail).fix("use a time such as 2030-12-31T23:59:59Z")
    })
}

/// Bans somebody, and ends the connections that this means.
pub(crate) async fn ban(
    api: &Arc<Api>,
    call: &Call,
    banned: Banned,
    until: u64,
) -> Result<(), Problem> {
    let ban = view(&banned, until, true);
    // Nobody is connected in one that there is no more.
    let within = match banned.namespace().map(|name| api.facts.namespaces.scope_of(name)) {
        Some(Some(scope)) => Some(scope),
        Some(None) => return Err(Problem::missing("namespace", &ban.namespace)),
        None => None,
    };
    let whom = match &banned {
        Banned::Client(Named { name, .. }) => Whom::Client(name.clone()),
        Banned::User(Named { name, .. }) => Whom::User(name.clone()),
        Banned::Address(address) => Whom::Addresses(*address..=*address),
        Banned::Network(network) => Whom::Addresses(network.addresses()),
    };
    let own = api.clone();
    let add = move || {
        let lists = own.facts.limiter.bans.add(banned, until, own.facts.clock.wall_secs())?;
        own.shards.put_bans(&lists);
        Ok(())
    };
    change(add).await?;
    note(api, call, &ban, &table::BAN_ADDED);
    end_connections(api, within, whom).await
}

/// The cell whose owner has the bans of a cluster with several cells.
pub(crate) const CELL_OF_BANS: u16 = 0;

/// The bans of the API, for another node.
pub(super) fn own(api: &Api) -> Outcome {
    Ok(Some(json!({ "bans": api.facts.limiter.bans.lists().own.to_text() })))
}

/// Puts the bans in force that the API has added at any node.
pub(super) async fn follow(api: &Arc<Api>) -> Result<(), Problem> {
    let Some(calls) = &api.calls_to_cells else { return Ok(()) };
    let answer = calls.ask(CELL_OF_BANS, &Asked::own_bans()).await.map_err(Problem::from)??;
    let text = answer.as_ref().and_then(|answer| answer["bans"].as_str()).unwrap_or_default();
    let (own, text) = (api.clone(), text.to_owned());
    let follow = move || own.facts.limiter.bans.follow(&text);
    let failed = |detail: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail);
    let followed = web::aside(follow).await.ok_or_else(|| failed("a thread failed".into()))?;
    calls.put_bans(&followed.map_err(failed)?);
    Ok(())
}

pub(crate) async fn remove(api: &Arc<Api>, call: &Call) -> Outcome {
    let (kind, who) = (call.needed("kind"), call.needed("who"));
    let banned = Banned::parse(kind, who).map_err(|why| Problem::bad("query", why))?;
    let banned = to_take_back(api, banned, call.text(scopes::PARAM))?;
    let (own, ban) = (api.clone(), view(&banned, FOR_EVER, true));
    change(move || {
        let lists = own.facts.limiter.bans.remove(&banned, own.facts.clock.wall_secs())?;
        own.shards.put_bans(&lists);
        Ok(())
    })
    .await?;
    note(api, call, &ban, &table::BAN_REMOVED);
    Ok(None)
}

/// The ban that a request means: of a name the only one that there is, or that of the namespace.
fn to_take_back(api: &Api, banned: Banned, namespace: Option<&str>) -> Result<Banned, Problem> {
    match namespace {
        Some(ALL) => return Ok(banned),
        // It may be gone, and its bans are still there.
        Some(name) => return banned.in_namespace(name).map_err(|why| Problem::bad("query", why)),
        None => {}
    }
    let Lists { own, file, .. } = &*api.facts.limiter.bans.lists();
    let mut same = own.same_name(&banned);
    if same.is_empty() {
        same = file.same_name(&banned);
    }
    if same.len() > 1 {
        let names: Vec<&str> = same.iter().map(|it| it.namespace().unwrap_or(ALL)).collect();
        let who = banned.who();
        let detail = format!("'{who}' is banned in several namespaces: {}", names.join(", "));
        return Err(Problem::bad("query", detail).fix("select one with the parameter `namespace`"));
    }
    Ok(same.pop().unwrap_or(banned))
}

/// Reports a change, in addition to the line of the call, which does not have the body.
fn note(api: &Api, call: &Call, ban: &Ban, kind: &'static EventKind) {
    let by = &call.caller.name;
    let mut data =
        json!({ "kind": ban.kind, "who": ban.who, "namespace": ban.namespace, "by": by });
    if std::ptr::eq(kind, &table::BAN_ADDED) {
        data["until"] = ban.until.clone().into();
    }
    let happened = Happened::of_broker(kind, data);
    happened.log();
    let message = api.facts.life_cycle.on_other(&happened);
    message.into_iter().for_each(|message| api.shards.publish(message));
}

async fn change(
    work: impl FnOnce() -> Result<(), NoChange> + Send + 'static,
) -> Result<(), Problem> {
    match web::aside(work).await {
        Some(done) => done.map_err(Problem::from),
        None => {
            let detail = "changing the list of bans failed";
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail))
        }
    }
}

/// A page of sessions at a time, as in lists.
async fn end_connections(api: &Api, within: Option<Scope>, whom: Whom) -> Result<(), Problem> {
    for shard in 0..api.shards.count() {
        let mut next = Some(0);
        while let Some(from) = next {
            let command = Command::EndBanned { from, within, whom: whom.clone() };
            next = match api.shards.ask(shard, Scope::FIRST, command).await? {
                Answer::Ended(next) => next,
                _ => return Err(other_answer()),
            };
        }
    }
    Ok(())
}

impl From<NoChange> for Problem {
    fn from(no_change: NoChange) -> Self {
        match no_change {
            NoChange::Missing => Self::new(
                StatusCode::NOT_FOUND,
                "unknown ban: GET /bans lists \
            all",
            ),
            NoChange::ByHand(path) => {
                let detail =
                    format!("this ban is in {}, which the API does not change", path.display());
                let fix = "remove its line from the file and send the broker SIGHUP";
                Self::new(StatusCode::CONFLICT, detail).fix(fix)
            }
            NoChange::Full => Self::new(StatusCode::INSUFFICIENT_STORAGE, FULL),
            NoChange::Unwritten(path, error) => {
                let detail = format!("cannot write {}: {error}", path.display());
                let fix = "nothing was changed: check the disk and try again";
                Self::new(StatusCode::INSUFFICIENT_STORAGE, detail).fix(fix)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_they_were_written() {
        for (kind, who) in [("client", "a.b/ü"), ("user", "u"), ("address", "10.0.0.0/8")] {
            let banned = Banned::parse(kind, who).unwrap();
            let text = cursor(1, Some(&banned));
            assert_eq!(read_cursor(&text), Some((1, Some(banned.clone()))));
            let Ok(own) = banned.in_namespace("a.b") else { continue };
            assert_eq!(read_cursor(&cursor(0, Some(&own))), Some((0, Some(own))));
        }
        assert_eq!(read_cursor(&cursor(0, None)), Some((0, None)));
        for wrong in
            ["", "2.", "0", "0.client", "0.client.%", "0.x.QQ", "0.client.", "0.client@.QQ"]
        {
            assert_eq!(read_cursor(wrong), None, "{wrong}");
        }
    }
}
