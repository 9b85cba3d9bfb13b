//! Events as rules of the broker make them, and what a sink makes of them.

use std::sync::{Arc, Mutex};

use policy::Attributes;
use routing::{
    Binding, Enrichment, Enrichments, Event, Form, Output, PayloadReading, Record, form,
};

use crate::OnArrival;

/// A stamp is neither text nor JSON. The topic needs escapes in a header of HTTP.
pub(crate) const PAYLOAD: &[u8] = b"\xbe\xef\x00{\"stamp\": \xff}";
pub(crate) const TOPIC: &str = "d2c/\u{fc} 100%/\"a\"";

/// A message that is routed in a form.
pub(crate) fn routed(form: Form, binding: Binding, reading: PayloadReading) -> Output {
    let attributes = Attributes::default();
    let record = Record {
        id: "id-1",
        namespace: "factory",
        time_ms: 1_795_953_600_007,
        client_id: "c7",
        username: None,
        attributes: &attributes,
        topic: TOPIC,
        qos: 1,
        retain: false,
        expiry_secs: None,
        payload_format: 0,
        content_type: None,
        response_topic: None,
        correlation_data: None,
        user_properties: &[],
        payload: PAYLOAD,
    };
    let site = Enrichment::fixed("site", "berlin").expect("an enrichment");
    let enrichments = Enrichments::new(vec![site]).expect("enrichments");
    form::render(&Event::new(&record), &enrichments, reading, form, binding)
}

/// Every form with every reading of the payload.
pub(crate) fn forms() -> impl Iterator<Item = (Form, PayloadReading)> {
    Form::WORDS
        .into_iter()
        .flat_map(|(_, form)| [(form, PayloadReading::Declared), (form, PayloadReading::Json)])
}

/// Checks that exactly the message of [`routed`] arrives.
pub(crate) fn check(form: Form, pass_on: impl FnOnce(&OnArrival)) {
    let found = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&found);
    let on_arrival: OnArrival = Arc::new(move |event| {
        let event = event.expect("an event");
        let subject = event.subject.map(|subject| subject.into_owned());
        shared.lock().expect("no panic").push((subject, event.payload.into_owned()));
    });
    pass_on(&on_arrival);
    // Nothing tells the topic of a raw payload.
    let subject = (form != Form::Raw).then(|| TOPIC.to_owned());
    assert_eq!(*found.lock().expect("no panic"), [(subject, PAYLOAD.to_vec())], "{form:?}");
}
