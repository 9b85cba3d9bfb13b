use std::sync::Arc;

use broker::{ConnectRequest, Homes, Scope, Settings, Shared};
use codec::Reason;
use policy::{Attribute, Attributes, Principal};

use super::*;
use config::{NamespaceSource, Placing};

fn shared() -> Arc<Shared> {
    Shared::new(Settings::default(), Homes::of_one_cell(1), 1)
}

fn open_in(
    dir: &tempfile::TempDir,
    shared: &Arc<Shared>,
    configured: &[Namespace],
) -> anyhow::Result<Namespaces> {
    std::fs::create_dir_all(dir.path().join("shard-000"))?;
    let namespaces = Namespaces::open(Some(dir.path()), &Stamps::default(), shared, configured)?;
    namespaces.settle(&BTreeSet::new())?;
    Ok(namespaces)
}

fn open(name: &str) -> Namespace {
    Namespace { hosts: vec![format!("{name}.example.com")], ..Namespace::open(name) }
}

fn of_state(name: &str, state: NamespaceState) -> Namespace {
    Namespace { state, ..open(name) }
}

fn configure(namespaces: &Namespaces, configured: &[Namespace]) {
    namespaces.configure(configured, |_| {}).unwrap();
}

/// Where a client comes, by what it shows, and what it is called there.
fn place(
    namespaces: &Namespaces,
    placing: &Placing,
    username: Option<&str>,
    attribute: Option<Attribute>,
    host: Option<&str>,
) -> Result<(Scope, Option<Box<str>>), Reason> {
    let values = attribute.map(|value| ("namespace".into(), value));
    let principal = Principal { attributes: Attributes::new(values), ..Principal::default() };
    let mut request = ConnectRequest {
        username: username.map(Into::into),
        principal: Some(Box::new(principal)),
        ..request()
    };
    let placing = placing.clone();
    let belonging = Belonging { placing, has_prefixes: true };
    let mut placed = belonging.place(namespaces, &mut request, host);
    if let Ok(Placement::NamespaceMissing(name)) = &placed {
        assert_eq!(namespaces.make_for_clients(std::slice::from_ref(name)), [true]);
        placed = belonging.place(namespaces, &mut request, host);
    }
    let is_in = |place| assert_eq!(place, Placement::Placed);
    placed.map(is_in).map_err(|misplaced| misplaced.reason)?;
    Ok((request.scope, request.username))
}

fn request() -> ConnectRequest {
    let connect = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00";
    match broker::admission::admit(connect, &Arc::default(), "peer", || "assigned".into()) {
        broker::admission::Admission::Connect(credentials, _) => credentials.request,
        other => panic!("{other:?}"),
    }
}

fn by(sources: &[NamespaceSource]) -> Placing {
    Placing { from: sources.to_vec(), ..Placing::default() }
}

#[test]
fn clients_come_to_where_listener_host_name_or_credential_say() {
    let namespaces =
        Namespaces::open(None, &Stamps::default(), &shared(), &[open("a"), open("b")]).unwrap();
    let [a, b] = ["a", "b"].map(|name| namespaces.scope_of(name).unwrap());
    let text = |name: &str| Some(Attribute::Text(name.into()));
    let nothing = Placing::default();
    let here = |placing: &Placing, username, attribute, host| {
        place(&namespaces, placing, username, attribute, host)
    };
    let first = Ok((Scope::FIRST, Some("c:x".into())));
    assert_eq!(here(&nothing, Some("c:x"), text("a"), Some("a.example.com")), first);
    let of_listener = Placing { own: Some("b".into()), ..nothing.clone() };
    assert_eq!(here(&of_listener, Some("c:x"), None, None), Ok((b, Some("c:x".into()))));
    let by_name = by(&[NamespaceSource::Username]);
    assert_eq!(here(&by_name, Some("a:x"), None, None), Ok((a, Some("x".into()))));
    assert_eq!(here(&by_name, Some("a:x:y"), None, None), Ok((a, Some("x:y".into()))));
    assert_eq!(here(&by_name, Some("a:"), None, None), Ok((a, None)));
    assert_eq!(here(&by_name, Some("x"), None, None), Err(Reason::NOT_AUTHORIZED));
    let open = Placing { own: Some("default".into()), ..by_name.clone() };
    assert_eq!(here(&open, Some("x"), None, None), Ok((Scope::FIRST, Some("x".into()))));
    assert_eq!(here(&by_name, Some("c:x"), None, None), Err(Reason::NOT_AUTHORIZED));
    assert_eq!(here(&by_name, Some(":x"), None, None), Err(Reason::NOT_AUTHORIZED));
    let by_host = by(&[NamespaceSource::Host]);
    let asked = here(&by_host, Some("x"), None, Some("B.example.COM"));
    assert_eq!(asked, Ok((b, Some("x".into()))));
    let of_none = here(&by_host, None, None, Some("c.example.com"));
    assert_eq!(of_none, Err(Reason::NOT_AUTHORIZED));
    let by_attribute = by(&[NamespaceSource::Attribute]);
    assert_eq!(here(&by_attribute, None, text("b"), None), Ok((b, None)));
    assert_eq!(here(&by_attribute, Some("x"), None, None), Err(Reason::NOT_AUTHORIZED));
    assert_eq!(here(&by_attribute, None, text("c"), None), Err(Reason::NOT_AUTHORIZED));
    let list = Attribute::List([Attribute::Text("a".into())].into());
    assert_eq!(here(&by_attribute, None, Some(list), None), Err(Reason::NOT_AUTHORIZED));
}

#[test]
fn nothing_that_a_client_shows_leads_to_the_default_namespace() {
    let namespaces = Namespaces::open(None, &Stamps::default(), &shared(), &[open("a")]).unwrap();
    let text = |name: &str| Some(Attribute::Text(name.into()));
    let sources = [NamespaceSource::Attribute, NamespaceSource::Username, NamespaceSource::Host];
    let refused = Err(Reason::NOT_AUTHORIZED);
    for creates in [false, true] {
        let placing = Placing { creates, ..by(&sources) };
        let elsewhere = Placing { own: Some("a".into()), ..placing.clone() };
        for placing in [&placing, &elsewhere] {
            assert_eq!(place(&namespaces, placing, None, text("default"), None), refused);
            assert_eq!(place(&namespaces, placing, Some("default:x"), None, None), refused);
            let both = place(&namespaces, placing, Some("default:x"), text("default"), None);
            assert_eq!(both, refused);
            let host = Some("a.example.com");
            assert_eq!(place(&namespaces, placing, None, text("default"), host), refused);
        }
        // There the listener leads everybody who names none.
        let own = Placing { own: Some("default".into()), ..placing };
        let there = place(&namespaces, &own, Some("x"), text("default"), None);
        assert_eq!(there, Ok((Scope::FIRST, Some("x".into()))));
    }
}

#[test]
fn names_with_the_prefix_of_another_namespace_are_refused() {
    let namespaces =
        Namespaces::open(None, &Stamps::default(), &shared(), &[open("red"), open("blue")])
            .unwrap();
    let blue = namespaces.scope_of("blue").unwrap();
    let plain = Placing::default();
    let of_blue = Placing { own: Some("blue".into()), ..Placing::default() };
    let by_attribute = by(&[NamespaceSource::Attribute]);
    let said = || Some(Attribute::Text("blue".into()));
    for (placing, attribute) in [(&plain, None), (&of_blue, None), (&by_attribute, said())] {
        let placed = place(&namespaces, placing, Some("red:anna"), attribute.clone(), None);
        assert_eq!(placed, Err(Reason::NOT_AUTHORIZED), "{placing:?}");
        let placed = place(&namespaces, placing, Some("gray:anna"), attribute, None);
        assert!(placed.is_ok(), "there is no namespace of that name: {placing:?}");
    }
    let own = place(&namespaces, &of_blue, Some("blue:anna"), None, None);
    assert_eq!(own, Ok((blue, Some("blue:anna".into()))));
    for (client_id, is_placed) in [("red:c", false), ("blue:c", true), ("gray:c", true)] {
        let mut request = ConnectRequest { client_id: client_id.into(), ..request() };
        let belonging = Belonging { placing: of_blue.clone(), has_prefixes: true };
        let placed = belonging.place(&namespaces, &mut request, None);
        assert_eq!(placed.is_ok(), is_placed, "{client_id}");
    }
    // Without a listener that goes by user names a colon is a letter like others.
    let mut request = ConnectRequest { username: Some("red:anna".into()), ..request() };
    let belonging = Belonging { placing: of_blue, has_prefixes: false };
    assert_eq!(belonging.place(&namespaces, &mut request, None), Ok(Placement::Placed));
}

#[test]
fn who_says_two_different_namespaces_is_refused() {
    let namespaces =
        Namespaces::open(None, &Stamps::default(), &shared(), &[open("a"), open("b")]).unwrap();
    let a = namespaces.scope_of("a").unwrap();
    use NamespaceSource::{Attribute as Claim, Host, Username};
    let all = by(&[Host, Username, Claim]);
    let said = |name: &str| Some(Attribute::Text(name.into()));
    let host = Some("a.example.com");
    let same = place(&namespaces, &all, Some("a:x"), said("a"), host);
    assert_eq!(same, Ok((a, Some("x".into()))));
    for (username, attribute, host) in [
        ("b:x", said("a"), host),
        ("a:x", said("b"), host),
        ("a:x", said("a"), Some("b.example.com")),
        ("a:x", said("default"), None),
    ] {
        let placed = place(&namespaces, &all, Some(username), attribute, host);
        assert_eq!(placed, Err(Reason::NOT_AUTHORIZED), "{username}");
    }
    let creating = Placing { creates: true, ..all };
    for (username, attribute, host) in
        [("new:x", said("newer"), None), ("new:x", said("a"), None), ("new:x", None, host)]
    {
        let placed = place(&namespaces, &creating, Some(username), attribute, host);
        assert_eq!(placed, Err(Reason::NOT_AUTHORIZED));
    }
    assert_eq!(
        namespaces.scope_of("new").or(namespaces.scope_of("newer")),
        None,
        "nothing is made"
    );
}

#[test]
fn an_unknown_namespace_is_made_where_that_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let shared = shared();
    let namespaces = open_in(&dir, &shared, &[]).unwrap();
    let creating = Placing { creates: true, ..by(&[NamespaceSource::Username]) };
    let (scope, _) = place(&namespaces, &creating, Some("new:x"), None, None).unwrap();
    assert_eq!(place(&namespaces, &creating, Some("new:y"), None, None).unwrap().0, scope);
    assert!(place(&namespaces, &creating, Some("no name:x"), None, None).is_err());
    drop(namespaces);
    let again = open_in(&dir, &shared, &[]).unwrap();
    assert_eq!(again.scope_of("new"), Some(scope));
}

#[test]
fn who_is_suspended_or_no_longer_configured_is_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    let shared = shared();
    let namespaces = open_in(&dir, &shared, &[open("a")]).unwrap();
    let by_name = by(&[NamespaceSource::Username]);
    let come = |namespaces: &Namespaces| place(namespaces, &by_name, Some("a:x"), None, None);
    let a = come(&namespaces).unwrap().0;
    configure(&namespaces, &[of_state("a", NamespaceState::Suspended)]);
    assert_eq!(come(&namespaces), Err(Reason::BANNED));
    configure(&namespaces, &[open("a")]);
    assert_eq!(come(&namespaces).unwrap().0, a);
    configure(&namespaces, &[]);
    assert_eq!(come(&namespaces), Err(Reason::BANNED));
    drop(namespaces);
    let again = open_in(&dir, &shared, &[]).unwrap();
    assert_eq!(come(&again), Err(Reason::BANNED));
}

#[test]
fn a_deleted_one_stays_closed_until_nothing_is_left_and_begins_anew_then() {
    let dir = tempfile::tempdir().unwrap();
    let shared = shared();
    let namespaces = open_in(&dir, &shared, &[open("a")]).unwrap();
    let old = namespaces.scope_of("a").unwrap();
    let deleted = of_state("a", NamespaceState::Deleted);
    configure(&namespaces, std::slice::from_ref(&deleted));
    assert_eq!(namespaces.deleted(), [old]);
    // Whoever wants it back meanwhile would find half of it.
    configure(&namespaces, &[open("a")]);
    assert_eq!(namespaces.deleted(), [old]);
    namespaces.forget(old).unwrap();
    configure(&namespaces, &[deleted]);
    assert_eq!((namespaces.scope_of("a"), namespaces.deleted()), (None, vec![]));
    configure(&namespaces, &[open("a")]);
    assert_ne!(namespaces.scope_of("a"), Some(old));
}

#[test]
fn data_of_a_namespace_that_never_had_a_number_is_not_overlooked() {
    let namespaces =
        Namespaces::open(None, &Stamps::default(), &shared(), &[open("a"), open("b")]).unwrap();
    let [a, b] = ["a", "b"].map(|name| namespaces.scope_of(name).unwrap());
    namespaces.settle(&BTreeSet::new()).unwrap();
    namespaces.forget(a).unwrap();
    assert_eq!(namespaces.lacks_name(&[Scope::FIRST, b].into()), None);
    assert_eq!(namespaces.deleted(), []);
    assert_eq!(namespaces.lacks_name(&[a, b].into()), None);
    assert_eq!(namespaces.deleted(), [a], "what a crash has brought back goes again");
    let stranger = Scope::new(b.number() + 1);
    assert_eq!(namespaces.lacks_name(&[stranger].into()), Some(stranger));
}

/// Else a client could come to one whose rules nobody knows yet.
#[test]
fn nobody_comes_to_a_new_one_before_all_are_reported_of_it() {
    let namespaces = Namespaces::open(None, &Stamps::default(), &shared(), &[]).unwrap();
    let notified = |views: &[View]| {
        assert_eq!(views.iter().map(|view| &*view.name).collect::<Vec<_>>(), ["a"]);
        assert!(namespaces.table.try_read().is_err(), "acceptors wait");
    };
    namespaces.configure(&[open("a")], notified).unwrap();
    assert!(namespaces.scope_of("a").is_some());
}

#[test]
fn what_cannot_be_written_down_is_reported_to_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let namespaces = open_in(&dir, &shared(), &[open("a")]).unwrap();
    std::fs::remove_dir_all(dir.path()).unwrap();
    let notified = |_: &[View]| panic!("told");
    assert!(namespaces.configure(&[open("b")], notified).is_err());
    assert_eq!(namespaces.scope_of("b"), None);
}

#[test]
fn names_of_the_configuration_get_no_number_that_the_logs_know_as_others() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("shard-000")).unwrap();
    let open_both = || {
        let configured = [open("blue"), open("red")];
        Namespaces::open(Some(dir.path()), &Stamps::default(), &shared(), &configured).unwrap()
    };
    let of_logs = BTreeSet::from([Scope::new(1)]);
    let error = open_both().settle(&of_logs).unwrap_err().to_string();
    assert!(error.contains("namespace number 1") && error.contains("restore"), "{error}");
    open_both().settle(&of_logs).unwrap_err();
    open_both().settle(&BTreeSet::new()).unwrap();
    open_both().settle(&of_logs).unwrap();
}

#[test]
fn a_start_deletes_only_what_was_being_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let found = |configured: &[Namespace]| {
        let found = without_new_deletions(Some(dir.path()), &Stamps::default(), configured);
        found.unwrap().into_iter().map(|own| own.state).collect::<Vec<_>>()
    };
    let deleted = [of_state("a", NamespaceState::Deleted)];
    assert_eq!(found(&deleted), [NamespaceState::Deleted], "there was none");
    let namespaces = open_in(&dir, &shared(), &[open("a")]).unwrap();
    assert_eq!(found(&deleted), [NamespaceState::Suspended]);
    assert_eq!(found(&[open("a")]), [NamespaceState::Open]);
    configure(&namespaces, &deleted);
    assert_eq!(found(&deleted), [NamespaceState::Deleted]);
}

#[test]
fn a_namespace_is_open_while_clients_may_be_in_it() {
    let namespaces =
        Namespaces::open(None, &Stamps::default(), &shared(), &[open("a"), open("b")]).unwrap();
    assert!(namespaces.is_open("a") && namespaces.is_open(DEFAULT) && !namespaces.is_open("c"));
    namespaces.hold("a", true).unwrap();
    configure(&namespaces, &[open("a"), of_state("b", NamespaceState::Deleted)]);
    assert!(!namespaces.is_open("a") && !namespaces.is_open("b"));
    namespaces.hold("a", false).unwrap();
    assert!(namespaces.is_open("a"));
}
