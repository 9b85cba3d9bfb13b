//! Addresses and certificates.

use super::Finding;
use crate::run::{self, Addresses};
use config::Config;

pub(super) fn ports(config: &Config, found: &mut Vec<Finding>) {
    let area = "addresses";
    found.push(match run::check_addresses(config) {
        Addresses::Free => Finding::ok(area, "all are free"),
        Addresses::TakenByOurs(_) => {
            let data = config.server.data_dir.display();
            Finding::ok(area, format!("in use, and a broker runs on {data}"))
        }
        Addresses::Missing(error) => {
            Finding::fail(area, format!("{error:#}"), "ip address; correct the key listeners.url")
        }
        Addresses::Unusable(error) => Finding::fail(
            area,
            format!("{error:#}"),
            "ss -ltnp shows the program that has the port",
        ),
    });
}

pub(super) fn certificates(config: &Config, now_secs: u64, found: &mut Vec<Finding>) {
    for (name, loaded) in run::tls_of_all(config) {
        match loaded {
            Ok(tls) => look_at(&name, &tls, now_secs, found),
            Err(error) => {
                let fix = "correct the file, then: systemctl reload quelea";
                found.push(Finding::fail("certificates", format!("{error:#}"), fix));
            }
        }
    }
}

fn look_at(name: &str, tls: &net::TlsContext, now_secs: u64, found: &mut Vec<Finding>) {
    let area = "certificates";
    let before = found.len();
    let path = tls.options().certificate.display();
    let not_after_secs = tls.not_after_secs();
    let until = base::moment::text_of(not_after_secs);
    let renew = format!("replace {path}, then: systemctl reload quelea");
    match not_after_secs.checked_sub(now_secs) {
        None => {
            let text = format!("{name}: the certificate expired on {until}");
            found.push(Finding::fail(area, text, renew));
        }
        Some(..WARNING_SECS) => {
            let text = format!("{name}: the certificate expires on {until}");
            found.push(Finding::warn(area, text, renew));
        }
        Some(_) => {}
    }
    if tls.names().is_empty() {
        let text = format!(
            "{name}: the certificate has no host name or address (subject alternative \
            name), so clients that verify it refuse it"
        );
        let fix = format!("have {path} issued with the names that clients connect to");
        found.push(Finding::warn(area, text, fix));
    }
    if found.len() == before {
        let names = tls.names().join(", ");
        let text = format!("{name}: for {names}, valid until {until}");
        found.push(Finding::ok(area, text));
    }
}

/// As for the warnings of a running broker.
const WARNING_SECS: u64 = 14 * 24 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use config::{Machine, SourceFile, Sources, load};

    fn levels(names: &[&str], now_secs: impl Fn(u64) -> u64) -> Vec<Level> {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let own = rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(directory.path().join("a.pem"), own.cert.pem()).unwrap();
        std::fs::write(directory.path().join("a.key"), own.signing_key.serialize_pem()).unwrap();
        let text = "[[listeners]]\nurl = \"tls://127.0.0.1:0\"\n\
            tls = { certificate = \"a.pem\", key = \"a.key\" }";
        let file = SourceFile { path: directory.path().join("q.toml"), text: text.into() };
        let sources = Sources { file: Some(file), ..Sources::default() };
        let config = load(&sources, &Machine::UNKNOWN).unwrap().config;
        let tls = run::tls_of_all(&config).remove(0).1.unwrap();
        let mut found = Vec::new();
        certificates(&config, now_secs(tls.not_after_secs()), &mut found);
        found.into_iter().map(|found| found.level).collect()
    }

    #[test]
    fn expiry_and_names_of_certificates_are_judged() {
        let named = ["broker.example"];
        assert_eq!(levels(&named, |end| end - WARNING_SECS), [Level::Ok]);
        assert_eq!(levels(&named, |end| end - WARNING_SECS + 1), [Level::Warn]);
        assert_eq!(levels(&named, |end| end + 1), [Level::Fail]);
        assert_eq!(levels(&[], |end| end - WARNING_SECS), [Level::Warn]);
    }
}
