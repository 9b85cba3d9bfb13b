//! `docs/use/api.openapi.json` is what the broker serves.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::path::Path;

#[test]
fn docs_api_is_what_the_broker_serves() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/use/api.openapi.json");
    let text = format!("{:#}\n", quelea::api::openapi::document());
    if std::env::var_os("QUELEA_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(written, text, "run `cargo xtask docs`");
}
