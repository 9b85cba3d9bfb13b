//! Queries of client groups: an input is the text of one. It is asked of clients who have different
//! attributes, and the answers have to follow logic.

use policy::Identity;
use policy::query::Query;
use policy::{Attribute, Attributes, Principal};

pub fn queries(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let query = match Query::parse(text) {
        Ok(query) => query,
        Err(error) => {
            assert!(!error.detail.is_empty(), "an error says what is wrong: {text:?}");
            assert!(error.at <= text.len(), "{error:?} of {text:?}");
            return;
        }
    };
    let answers = answers(&query);
    if !query.asks_for_user() {
        assert_eq!(answers[..CLIENTS], answers[CLIENTS..], "{text:?} asks for no user");
    }
    if query.attributes().is_empty() {
        let first = answers[0];
        assert!(answers[..CLIENTS].iter().all(|answer| *answer == first), "{text:?}");
    }
    let opposite: Vec<bool> = answers.iter().map(|answer| !answer).collect();
    for (longer, expected) in [
        (format!(" ({text})\t"), &answers),
        (format!("({text}) and ({text})"), &answers),
        (format!("({text}) or ({text})"), &answers),
        (format!("not ({text})"), &opposite),
    ] {
        // One that is deep or long already may not get deeper or longer.
        if let Ok(query) = Query::parse(&longer) {
            assert_eq!(&self::answers(&query), expected, "{longer:?}");
        }
    }
}

/// Those with a user name, and the same without.
const CLIENTS: usize = 4;

fn answers(query: &Query) -> Vec<bool> {
    let attributes = [
        Attributes::default(),
        Attributes::new([("type".into(), Attribute::Text("sensor".into()))]),
        Attributes::new([("floor".into(), Attribute::Number(4.into()))]),
        Attributes::new([(
            "type".into(),
            Attribute::List(Box::new([
                Attribute::Text("sensor".into()),
                Attribute::Text("vehicle".into()),
            ])),
        )]),
    ];
    let principals = attributes.map(|attributes| Principal { attributes, ..Principal::default() });
    let ask = |username| {
        let all = principals.iter().map(Some);
        all.map(move |principal| Identity { client_id: "c1", username, principal })
    };
    ask(Some("anna")).chain(ask(None)).map(|who| query.holds(who)).collect()
}

pub fn seeds() -> Vec<Vec<u8>> {
    let deep = format!("{}user = 'x'{}", "(".repeat(31), ")".repeat(31));
    let nots = format!("{}client.id = 'c1'", "not ".repeat(31));
    let texts = [
        "attributes.type in ['sensor', \"vehicle\"] and attributes.floor > 3",
        "attributes.type not in ['sensor'] or not (user = 'anna')",
        "authenticationName != 'anna' AND client.id == 'c1'",
        "attributes.floor <= -1.5e3 or attributes.floor >= 4",
        "attributes.floor <> 4 and attributes.type = 'sensor'",
        "client.id = ''",
        &deep,
        &nots,
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
