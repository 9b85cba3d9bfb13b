//! Every transport, against quelea; and TLS with client certificates against Debian's mosquitto,
//! which has another TLS library and, as packaged, no WebSocket.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Mosquitto, pairs, scenario, total};
use conformance::broker::{Quelea, scratch_directory};
use flock::engine::{Options, run};
use flock_measure::{Outcome, Results};
use flock_model::{Tls, Transport};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// A CA, a server and a client certificate, as PEM files.
struct Certificates {
    directory: std::path::PathBuf,
}

impl Certificates {
    fn make() -> Self {
        let directory = scratch_directory();
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::<String>::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(rcgen::DnType::CommonName, "flock test ca");
        let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
        let issuer = Issuer::new(ca, ca_key);
        std::fs::write(directory.join("ca.pem"), ca_pem).unwrap();
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let mut params =
                CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let certificate = params.signed_by(&key, &issuer).unwrap().pem();
            std::fs::write(directory.join(format!("{name}.pem")), certificate).unwrap();
            std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// For mosquitto, asking its clients for a certificate.
    fn settings(&self) -> String {
        format!(
            "cafile {}\ncertfile {}\nkeyfile {}\nrequire_certificate true\n",
            self.path("ca.pem"),
            self.path("server.pem"),
            self.path("server.key")
        )
    }

    fn tls(&self) -> Tls {
        Tls {
            ca_file: Some(self.path("ca.pem")),
            cert_file: Some(self.path("client.pem")),
            key_file: Some(self.path("client.key")),
            ..Tls::default()
        }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn run_over(transport: &Transport, tls: Tls, address: &str) -> Results {
    let text = pairs(10, 50, 1, 200).replace("payload = 16", "payload = \"64KiB\"");
    let mut model = scenario(&text, address);
    model.brokers[0].transport = transport.clone();
    model.brokers[0].tls = tls;
    run(&model, Options { threads: Some(2), ..Options::default() }).unwrap()
}

fn assert_clean(results: &Results) {
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    assert!(results.errors.is_empty(), "{:?}", results.errors);
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
    assert_eq!(total(results).received, 500);
}

/// A quelea that listens by every transport; certificates are demanded where there is TLS.
fn quelea(certificates: &Certificates) -> Quelea {
    let [ca, server, key] =
        ["ca.pem", "server.pem", "server.key"].map(|name| certificates.path(name));
    let listener = |url: &str| format!("[[listeners]]\nurl = \"{url}\"\nallow_anonymous = true\n");
    let tls = format!(
        "[listeners.tls]\ncertificate = \"{server}\"\nkey = \"{key}\"\n\
         client_ca = \"{ca}\"\nclient_auth = \"require\"\n"
    );
    let mut config = String::from("[http]\nlisten = \"off\"\n");
    for scheme in ["tcp", "ws"] {
        config += &listener(&format!("{scheme}://127.0.0.1:0"));
    }
    config += &listener("unix://{dir}/quelea.sock");
    for scheme in ["tls", "wss"] {
        config += &listener(&format!("{scheme}://127.0.0.1:0"));
        config += &tls;
    }
    Quelea::start_in(&scratch_directory(), &config)
}

#[test]
fn every_transport_carries_the_same_load() {
    let certificates = Certificates::make();
    let broker = quelea(&certificates);
    let path = || "/mqtt".to_owned();
    for (scheme, transport) in [
        ("tcp", Transport::Tcp),
        ("tls", Transport::Tls),
        ("ws", Transport::Ws { path: path() }),
        ("wss", Transport::Wss { path: path() }),
    ] {
        println!("{transport}");
        let address = broker.address(scheme).to_string();
        assert_clean(&run_over(&transport, certificates.tls(), &address));
    }
}

#[test]
fn a_unix_socket_carries_it_too() {
    let certificates = Certificates::make();
    let broker = quelea(&certificates);
    let address = broker.directory().join("quelea.sock").display().to_string();
    assert_clean(&run_over(&Transport::Unix, Tls::default(), &address));
    let nowhere = run_over(&Transport::Unix, Tls::default(), "/nowhere/at.all");
    assert!(matches!(nowhere.run.outcome, Outcome::Failed(_)), "{:?}", nowhere.run.outcome);
    assert!(nowhere.errors[0].reason.contains("No such file"), "{:?}", nowhere.errors);
}

#[test]
fn a_transport_that_the_broker_does_not_speak_fails_in_its_handshake() {
    let certificates = Certificates::make();
    let broker = quelea(&certificates);
    let plain = broker.address("tcp").to_string();
    for transport in [Transport::Ws { path: "/mqtt".to_owned() }, Transport::Tls] {
        let results = run_over(&transport, certificates.tls(), &plain);
        assert!(matches!(results.run.outcome, Outcome::Failed(_)), "{:?}", results.run.outcome);
        let reason = &results.errors[0].reason;
        assert!(reason.contains("handshake") || reason.contains("TLS"), "{transport}: {reason}");
    }
}

#[test]
fn tls_with_client_certificates_against_mosquitto() {
    let certificates = Certificates::make();
    let broker = Mosquitto::start_with(&certificates.settings());
    assert_clean(&run_over(&Transport::Tls, certificates.tls(), &broker.address));
}

#[test]
fn a_missing_client_certificate_is_an_error_that_names_tls() {
    let certificates = Certificates::make();
    let broker = Mosquitto::start_with(&certificates.settings());
    let tls = Tls { cert_file: None, key_file: None, ..certificates.tls() };
    let results = run_over(&Transport::Tls, tls, &broker.address);
    assert!(matches!(results.run.outcome, Outcome::Failed(_)), "{:?}", results.run.outcome);
    assert_eq!(results.totals.connects_failed, 20);
}
