//! TLS over real sockets: both ends ours, both versions, certificates good and bad.

mod common;

use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use common::certificates::Authority;
use common::{
    accept, connector, exchange, good_pair, listen, pair, read, read_to_end, serve, write,
};
use net::{
    CertificateInfo, ClientAuth, ConnectOptions, Connector, Foreign, HandshakeError, ListenOptions,
    Listener, Progress, ProxyOptions, TlsClientContext, TlsClientOptions, TlsContext, TlsError,
    TlsInfo, TlsOptions, TlsVersion,
};

fn server_options(authority: &Authority) -> TlsOptions {
    TlsOptions::new(authority.path("server.pem"), authority.path("server.key"))
}

fn client_options(authority: &Authority) -> TlsClientOptions {
    TlsClientOptions { ca: Some(authority.path("ca.pem")), ..TlsClientOptions::default() }
}

fn authority() -> Authority {
    let authority = Authority::new();
    authority.issue("server", "localhost", 1);
    authority
}

fn context(options: TlsOptions) -> Arc<TlsContext> {
    Arc::new(TlsContext::load(options).expect("server context"))
}

fn listen_with(tls: &Arc<TlsContext>) -> (Listener, String) {
    let options = ListenOptions { tls: Some(Arc::clone(tls)), ..ListenOptions::default() };
    let (listener, address) = listen("tls://127.0.0.1:0", &options);
    (listener, format!("tls://localhost:{}", address.port()))
}

/// `localhost` may also stand for `::1`, where nobody listens: the connector is told the IP
/// address.
fn connect_with(url: &str, options: &TlsClientOptions) -> Connector {
    let tls = Some(TlsClientContext::load(options).expect("client context"));
    let server_name = Some("localhost".to_owned());
    let options = ConnectOptions { tls, server_name, ..ConnectOptions::default() };
    connector(&url.replace("localhost", "127.0.0.1"), &options)
}

#[test]
fn bytes_pass_both_ways_in_both_versions() {
    let authority = authority();
    for (version, name) in [(TlsVersion::V12, "TLSv1.2"), (TlsVersion::V13, "TLSv1.3")] {
        let (mut listener, url) = listen_with(&context(server_options(&authority)));
        let mut options = client_options(&authority);
        options.alpn = vec!["mqtt".to_owned()];
        options.version_min = version;
        options.is_version_12_only = version == TlsVersion::V12;
        let connector = connect_with(&url, &options);
        let ((mut server, peer), (client, server_peer)) = good_pair(&mut listener, &connector);
        let info = peer.tls.expect("TLS");
        assert_eq!(info.version, name);
        assert_eq!(info.server_name.as_deref(), Some("localhost"));
        assert_eq!(info.alpn.as_deref(), Some("mqtt"));
        assert_eq!(info.certificate, None);
        let certificate = server_peer.tls.expect("TLS").certificate.expect("certificate");
        assert_eq!(certificate.subject, "CN=localhost,O=Weavers");
        let shown = client.peer_certificates();
        assert_eq!(net::certificate_info(&shown[0]), Some(*certificate));
        assert_eq!(server.peer_certificates(), Vec::<Vec<u8>>::new());
        assert_eq!(TlsInfo::version_named(info.version), info.version);
        assert_eq!(TlsInfo::cipher_named(info.cipher), info.cipher);
        assert_eq!(TlsInfo::cipher_named("TLS_NULL"), "unknown");
        let (next, mut client) = exchange(server, client);
        server = next;
        client.shutdown().expect("shutdown");
        assert_eq!(read_to_end(&mut server).expect("read"), b"");
        write(&mut server, b"bye").expect("write");
        server.shutdown().expect("shutdown");
        assert_eq!(read_to_end(&mut client).expect("read"), b"bye");
    }
}

#[test]
fn sessions_are_resumed_until_a_reload() {
    let authority = authority();
    let context = context(server_options(&authority));
    for is_version_12_only in [false, true] {
        let (mut listener, url) = listen_with(&context);
        let options = TlsClientOptions { is_version_12_only, ..client_options(&authority) };
        let connector = connect_with(&url, &options);
        let mut resumed = Vec::new();
        for round in 0..3 {
            if round == 2 {
                context.reload().expect("reload");
            }
            let ((mut server, peer), (mut client, _)) = good_pair(&mut listener, &connector);
            // The ticket comes behind the handshake, with the first data at the latest.
            write(&mut server, b"x").expect("write");
            read(&mut client, 1).expect("read");
            resumed.push(peer.tls.expect("TLS").is_resumed);
        }
        assert_eq!(resumed, [false, true, false]);
    }
}

#[test]
fn only_the_named_cipher_suites_are_offered() {
    let authority = authority();
    let context = context(server_options(&authority));
    for (named, is_version_12_only) in [
        ("TLS_CHACHA20_POLY1305_SHA256", false),
        ("TLS_AES_256_GCM_SHA384", false),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", true),
    ] {
        let (mut listener, url) = listen_with(&context);
        let ciphers = vec![named.to_owned()];
        let options =
            TlsClientOptions { ciphers, is_version_12_only, ..client_options(&authority) };
        let ((_, peer), _) = good_pair(&mut listener, &connect_with(&url, &options));
        let used = peer.tls.expect("TLS").cipher.replacen("TLS13_", "TLS_", 1);
        assert_eq!(used, named);
    }
    let ciphers = vec!["TLS_NULL".to_owned()];
    let options = TlsClientOptions { ciphers, ..client_options(&authority) };
    let error = TlsClientContext::load(&options).err().expect("refused").to_string();
    assert!(error.contains("TLS_NULL") && error.contains("TLS_AES_128_GCM_SHA256"), "{error}");
}

#[test]
fn client_certificates_are_asked_for_as_configured() {
    let authority = authority();
    let stranger = Authority::new();
    authority.issue("client", "sensor-7", 7);
    stranger.issue("client", "sensor-7", 7);
    for (client_auth, certificate, is_good) in [
        (ClientAuth::None, Some(&authority), true),
        (ClientAuth::Optional, None, true),
        (ClientAuth::Optional, Some(&authority), true),
        (ClientAuth::Optional, Some(&stranger), false),
        (ClientAuth::Require, None, false),
        (ClientAuth::Require, Some(&authority), true),
        (ClientAuth::Require, Some(&stranger), false),
    ] {
        let mut options = server_options(&authority);
        options.client_auth = client_auth;
        options.client_ca = Some(authority.path("ca.pem"));
        let (mut listener, url) = listen_with(&context(options));
        let mut options = client_options(&authority);
        options.certificate = certificate.map(|authority| authority.path("client.pem"));
        options.key = certificate.map(|authority| authority.path("client.key"));
        let (server, _) = pair(&mut listener, &connect_with(&url, &options));
        match server {
            Ok((_, peer)) => {
                assert!(is_good, "{client_auth:?}");
                let found = peer.tls.expect("TLS").certificate;
                let is_expected = certificate.is_some() && client_auth != ClientAuth::None;
                assert_eq!(found.is_some(), is_expected, "{client_auth:?}");
                if let Some(found) = found {
                    assert_eq!(found.common_name, "sensor-7");
                    assert_eq!(found.alternative_names, ["DNS:sensor-7"]);
                }
            }
            Err(error) => {
                assert!(!is_good, "{client_auth:?}: {error}");
                assert!(matches!(error, HandshakeError::Tls(_)), "{error}");
            }
        }
    }
}

#[test]
fn a_revoked_client_is_refused() {
    let authority = authority();
    authority.issue("client", "sensor-7", 7);
    let mut options = server_options(&authority);
    options.client_auth = ClientAuth::Require;
    options.client_ca = Some(authority.path("ca.pem"));
    options.revocation_lists = Some(authority.path("crl.pem"));
    let mut client = client_options(&authority);
    client.certificate = Some(authority.path("client.pem"));
    client.key = Some(authority.path("client.key"));
    authority.revoke(&[8]);
    let context = context(options);
    let (mut listener, url) = listen_with(&context);
    let connector = connect_with(&url, &client);
    assert!(pair(&mut listener, &connector).0.is_ok());
    authority.revoke(&[8, 7]);
    context.reload().expect("reload");
    let error = pair(&mut listener, &connector).0.err().expect("a refusal");
    assert!(error.to_string().contains("Revoked"), "{error}");
}

#[test]
fn a_reload_takes_the_new_certificate_and_keeps_the_old_if_it_is_bad() {
    let authority = authority();
    let context = context(server_options(&authority));
    let (mut listener, url) = listen_with(&context);
    let options = TlsClientOptions { sessions_max: 0, ..client_options(&authority) };
    let connector = connect_with(&url, &options);
    let before = context.not_after_secs();
    let subject = |listener: &mut Listener| {
        let (_, (_, peer)) = good_pair(listener, &connector);
        peer.tls.expect("TLS").certificate.expect("certificate").fingerprint_sha256
    };
    let first = subject(&mut listener);

    let good = std::fs::read_to_string(authority.path("server.pem")).expect("read");
    authority.write("server.pem", "nonsense");
    let error = context.reload().expect_err("an error");
    assert!(error.to_string().contains("server.pem: no certificate in it"), "{error}");
    assert_eq!(subject(&mut listener), first);

    authority.write("server.pem", &good);
    authority.issue("server", "localhost", 2);
    context.reload().expect("reload");
    assert_ne!(subject(&mut listener), first);
    assert!(context.not_after_secs() > before);
}

#[test]
fn a_client_trusts_only_its_ca_and_the_right_name() {
    let (authority, stranger) = (authority(), Authority::new());
    let (mut listener, url) = listen_with(&context(server_options(&authority)));
    let error = pair(&mut listener, &connect_with(&url, &client_options(&stranger))).1;
    let error = error.err().expect("a refusal");
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");

    let tls = Some(TlsClientContext::load(&client_options(&authority)).expect("context"));
    let options = ConnectOptions { tls, ..ConnectOptions::default() };
    let by_ip = connector(&url.replace("localhost", "127.0.0.1"), &options);
    let error = pair(&mut listener, &by_ip).1.err().expect("a refusal");
    assert!(error.to_string().contains("not valid for name"), "{error}");

    let insecure = TlsClientOptions { is_insecure: true, ..client_options(&stranger) };
    assert!(pair(&mut listener, &connect_with(&url, &insecure)).1.is_ok());
}

#[test]
fn an_application_protocol_that_nobody_speaks_is_refused() {
    let authority = authority();
    let (mut listener, url) = listen_with(&context(server_options(&authority)));
    let options = TlsClientOptions { alpn: vec!["h2".to_owned()], ..client_options(&authority) };
    let error = pair(&mut listener, &connect_with(&url, &options)).0.err().expect("a refusal");
    assert!(error.to_string().contains("protocol"), "{error}");
}

#[test]
fn garbage_gets_an_alert() {
    let authority = authority();
    let (mut listener, url) = listen_with(&context(server_options(&authority)));
    let address = url.trim_start_matches("tls://").replace("localhost", "127.0.0.1");
    let mut client = TcpStream::connect(&address).expect("connect");
    client.write_all(b"\x10\x0c\0\x04MQTT\x05\x02\0<\0\0").expect("write");
    let error = serve(&mut listener).err().expect("a refusal");
    assert_eq!(error.label(), "foreign");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("read");
    assert_eq!(answer[..3], [21, 3, 3], "an alert record");
}

#[test]
fn half_a_handshake_waits_and_its_end_is_noticed() {
    let authority = authority();
    let (mut listener, url) = listen_with(&context(server_options(&authority)));
    let address = url.trim_start_matches("tls://").replace("localhost", "127.0.0.1");
    let mut client = TcpStream::connect(&address).expect("connect");
    let mut handshake = accept(&mut listener);
    let mut scratch = vec![0; 16 * 1024];
    for byte in [22, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3] {
        client.write_all(&[byte]).expect("write");
        assert!(matches!(handshake.advance(&mut scratch), Ok(Progress::Pending)));
    }
    drop(client);
    let error = common::complete(handshake).err().expect("an error");
    assert!(matches!(error, HandshakeError::Closed), "{error}");
}

#[test]
fn a_handshake_survives_being_cut_anywhere() {
    let authority = authority();
    let (mut listener, url) = listen_with(&context(server_options(&authority)));
    let target = url.trim_start_matches("tls://").replace("localhost", "127.0.0.1");
    let slow = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let slow_url = format!("tls://localhost:{}", slow.local_addr().expect("address").port());
    // A relay that passes single bytes on towards the server.
    let relay = std::thread::spawn(move || {
        let (client, _) = slow.accept().expect("accept");
        let server = TcpStream::connect(target).expect("connect");
        server.set_nodelay(true).expect("nodelay");
        let (mut from, mut to) =
            (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
        let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        for byte in std::io::BufReader::new(&client).bytes() {
            let Ok(byte) = byte else { break };
            if (&server).write_all(&[byte]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Write);
        let _ = back.join();
    });
    let connector = connect_with(&slow_url, &client_options(&authority));
    let ((mut server, _), (mut client, _)) = good_pair(&mut listener, &connector);
    write(&mut client, b"hello").expect("write");
    assert_eq!(read(&mut server, 5).expect("read"), b"hello");
    drop((client, server));
    relay.join().expect("relay");
}

#[test]
fn garbage_after_the_handshake_is_an_error_and_then_still_one() {
    let authority = authority();
    let (mut listener, url) = listen_with(&context(server_options(&authority)));
    let target = url.trim_start_matches("tls://").replace("localhost", "127.0.0.1");
    let front = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let front_url = format!("tls://localhost:{}", front.local_addr().expect("address").port());
    // A relay that adds a record of its own making when the client has gone.
    let relay = std::thread::spawn(move || {
        let (client, _) = front.accept().expect("accept");
        let mut server = TcpStream::connect(target).expect("connect");
        let (mut from, mut to) =
            (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
        let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let _ = std::io::copy(&mut &client, &mut server);
        server.write_all(&[23, 3, 3, 0, 40]).expect("write");
        server.write_all(&[7; 40]).expect("write");
        let _ = back.join();
    });
    let connector = connect_with(&front_url, &client_options(&authority));
    let ((mut server, _), (client, _)) = good_pair(&mut listener, &connector);
    drop(client);
    let error = read_to_end(&mut server).expect_err("an error");
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(server.write(&[IoSlice::new(b"x")]).is_err());
    server.shutdown().expect("shutdown");
    drop(server);
    relay.join().expect("relay");
}

#[test]
fn tls_comes_behind_a_proxy_header() {
    let authority = authority();
    let trusted = vec!["127.0.0.1".parse().expect("range")];
    let options = ListenOptions {
        tls: Some(context(server_options(&authority))),
        proxy: Some(ProxyOptions { trusted }),
        ..ListenOptions::default()
    };
    let (mut listener, address) = listen("tls://127.0.0.1:0", &options);
    let front = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("tls://localhost:{}", front.local_addr().expect("address").port());
    let proxy = std::thread::spawn(move || {
        let (client, _) = front.accept().expect("accept");
        let mut server = TcpStream::connect(address).expect("connect");
        server.write_all(b"PROXY TCP6 2001:db8::7 ::1 4660 8883\r\n").expect("write");
        let (mut from, mut to) =
            (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
        let back = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let _ = std::io::copy(&mut &client, &mut server);
        let _ = server.shutdown(std::net::Shutdown::Write);
        let _ = back.join();
    });
    let connector = connect_with(&url, &client_options(&authority));
    let ((server, peer), (client, _)) = good_pair(&mut listener, &connector);
    assert_eq!(peer.address.to_string(), "[2001:db8::7]:4660");
    assert!(peer.tls.is_some());
    drop((client, server));
    proxy.join().expect("proxy");
}

#[test]
fn faults_in_files_are_named() {
    let authority = authority();
    authority.issue("other", "localhost", 3);
    let fault = |change: &dyn Fn(&mut TlsOptions)| {
        let mut options = server_options(&authority);
        change(&mut options);
        TlsContext::load(options).err().expect("a fault")
    };
    let text = fault(&|options| options.key = authority.path("other.key")).to_string();
    assert!(text.contains("server.pem and") && text.contains("other.key"), "{text}");
    let text = fault(&|options| options.key = authority.path("none.key")).to_string();
    assert!(text.contains("cannot read") && text.contains("none.key"), "{text}");
    let text = fault(&|options| options.key = authority.path("server.pem")).to_string();
    assert!(text.contains("server.pem: no private key in it"), "{text}");
    authority.write("cut.pem", "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n");
    let text = fault(&|options| options.certificate = authority.path("cut.pem")).to_string();
    assert!(text.contains("cut.pem: section 1 is damaged"), "{text}");
    authority.write("odd.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let text = fault(&|options| options.certificate = authority.path("odd.pem")).to_string();
    assert!(text.contains("odd.pem: section 1 is not a valid certificate"), "{text}");
    authority.write(
        "secret.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    let text = fault(&|options| options.key = authority.path("secret.key")).to_string();
    assert!(text.contains("encrypted"), "{text}");
    let error = fault(&|options| options.client_auth = ClientAuth::Require);
    assert!(matches!(error, TlsError::ClientCaMissing), "{error}");
    let error =
        Listener::bind(&"tls://127.0.0.1:0".parse().expect("url"), &ListenOptions::default());
    assert!(error.err().expect("a fault").to_string().contains("needs a certificate"));
}

#[test]
fn keys_of_every_form_are_taken() {
    let authority = authority();
    for (arguments, label) in [
        (&["ecparam", "-name", "prime256v1", "-genkey", "-noout"][..], "EC PRIVATE KEY"),
        (&["genrsa", "-traditional", "2048"][..], "RSA PRIVATE KEY"),
    ] {
        let made = std::process::Command::new("openssl").args(arguments).output();
        let Ok(made) = made else {
            eprintln!("no openssl on this machine: SEC1 and PKCS #1 are left untested");
            return;
        };
        let text = String::from_utf8(made.stdout).expect("text");
        assert!(text.contains(label), "{text}");
        authority.write("form.key", &text);
        let mut options = server_options(&authority);
        options.key = authority.path("form.key");
        // It is understood, and only then found to belong to another certificate.
        let error = TlsContext::load(options).err().expect("a fault");
        assert!(matches!(error, TlsError::KeyMismatch { .. }), "{error}");
    }
}

#[test]
fn a_short_rsa_key_is_reported_as_that() {
    let authority = authority();
    authority.write("server.key", SHORT_KEY);
    let error = TlsContext::load(server_options(&authority)).err().expect("an error").to_string();
    assert!(error.contains("server.key") && error.contains("got 1024"), "{error}");
    assert!(error.contains("at least 2048"), "{error}");
}

#[test]
fn issuers_that_the_certificate_lacks_are_reported_or_taken_from_elsewhere() {
    let authority = Authority::new();
    authority.issue_below("server", "localhost");
    let bare = context(server_options(&authority));
    let note = bare.chain_note().expect("a note");
    assert!(note.contains("server.pem") && note.contains("CN=Between"), "{note}");
    let (mut listener, url) = listen_with(&bare);
    let (server, client) = pair(&mut listener, &connect_with(&url, &client_options(&authority)));
    assert!(client.is_err());
    let error = server.err().expect("the client refuses");
    assert!(error.broker_hint().contains("issuer is missing"), "{error}");

    // Root and issuer in one file, in any order, as other brokers take them.
    let read = |name: &str| std::fs::read_to_string(authority.path(name)).expect("read");
    authority.write("cafile.pem", &(read("ca.pem") + &read("between.pem")));
    let chain = Some(authority.path("cafile.pem"));
    let whole = context(TlsOptions { chain, ..server_options(&authority) });
    assert_eq!(whole.chain_note(), None);
    let (mut listener, url) = listen_with(&whole);
    good_pair(&mut listener, &connect_with(&url, &client_options(&authority)));
}

/// The client's certificate, or why it was refused.
fn shown_to_server(
    listener: &mut Listener,
    url: &str,
    options: &TlsClientOptions,
) -> Result<CertificateInfo, String> {
    let (server, _) = pair(listener, &connect_with(url, options));
    let (_, peer) = server.map_err(|error| error.to_string())?;
    Ok(*peer.tls.expect("TLS").certificate.expect("a certificate"))
}

fn with_certificate(authority: &Authority, name: &str, is_12: bool) -> TlsClientOptions {
    TlsClientOptions {
        certificate: Some(authority.path(&format!("{name}.pem"))),
        key: Some(authority.path(&format!("{name}.key"))),
        is_version_12_only: is_12,
        ..client_options(authority)
    }
}

#[test]
fn certificates_of_version_1_are_taken_from_a_named_authority() {
    let (authority, stranger) = (authority(), Authority::new());
    authority.issue_version_1("old", "localhost", 9);
    stranger.issue_version_1("old", "localhost", 9);
    let mut options = TlsOptions::new(authority.path("old.pem"), authority.path("old.key"));
    options.client_auth = ClientAuth::Require;
    options.client_ca = Some(authority.path("ca.pem"));
    let context = context(options);
    let note = context.chain_note().expect("a note");
    assert!(note.contains("version 1") && note.contains("subjectAltName"), "{note}");
    let (mut listener, url) = listen_with(&context);
    for is_12 in [true, false] {
        let client = with_certificate(&authority, "old", is_12);
        let shown = shown_to_server(&mut listener, &url, &client).expect("accepted");
        assert_eq!((shown.common_name.as_str(), shown.is_unissued), ("localhost", false));
        // Another authority of the same make, whose name the client trusts as well.
        let ca = Some(authority.path("ca.pem"));
        let client = TlsClientOptions { ca, ..with_certificate(&stranger, "old", is_12) };
        let refused = shown_to_server(&mut listener, &url, &client).expect_err("refused");
        assert!(refused.contains("X.509 version 1"), "{refused}");
        assert!(refused.contains("openssl x509 -req"), "{refused}");
    }
    // A server is known by its common name, and by no other.
    let tls = Some(TlsClientContext::load(&client_options(&authority)).expect("context"));
    let by_ip = ConnectOptions { tls, ..ConnectOptions::default() };
    let by_ip = connector(&url.replace("localhost", "127.0.0.1"), &by_ip);
    let refused = pair(&mut listener, &by_ip).1.err().expect("refused").to_string();
    assert!(refused.contains("NotValidForName"), "{refused}");
}

#[test]
fn a_certificate_of_version_1_is_of_its_key_its_dates_and_not_revoked() {
    let authority = authority();
    authority.issue_version_1("old", "sensor-7", 9);
    authority.issue("other", "sensor-7", 10);
    // With the key of another certificate.
    std::fs::copy(authority.path("other.key"), authority.path("old-other.key")).expect("copy");
    let mut wrong = with_certificate(&authority, "old", false);
    wrong.key = Some(authority.path("old-other.key"));
    let error = TlsClientContext::load(&wrong).err().expect("an error").to_string();
    assert!(error.contains("do not belong together"), "{error}");

    let mut options = server_options(&authority);
    options.client_auth = ClientAuth::Require;
    options.client_ca = Some(authority.path("ca.pem"));
    options.revocation_lists = Some(authority.path("crl.pem"));
    authority.revoke(&[8]);
    let context = context(options);
    let (mut listener, url) = listen_with(&context);
    let client = with_certificate(&authority, "old", false);
    shown_to_server(&mut listener, &url, &client).expect("accepted");
    authority.revoke(&[8, 9]);
    context.reload().expect("reload");
    let refused = shown_to_server(&mut listener, &url, &client).expect_err("refused");
    assert!(refused.contains("Revoked"), "{refused}");
    // A list of another authority says nothing of it.
    let stranger = Authority::new();
    stranger.revoke(&[8]);
    std::fs::copy(stranger.path("crl.pem"), authority.path("crl.pem")).expect("copy");
    context.reload().expect("reload");
    let refused = shown_to_server(&mut listener, &url, &client).expect_err("refused");
    assert!(refused.contains("UnknownRevocationStatus"), "{refused}");
}

#[test]
fn a_certificate_of_version_1_is_no_authority() {
    let authority = authority();
    authority.issue_version_1("old", "Between", 9);
    let mut options = server_options(&authority);
    options.client_auth = ClientAuth::Require;
    options.client_ca = Some(authority.path("ca.pem"));
    let (mut listener, url) = listen_with(&context(options));
    // What it has signed is sent with it as the intermediate.
    authority.issue_by("old", "leaf", "sensor-7");
    let refused =
        shown_to_server(&mut listener, &url, &with_certificate(&authority, "leaf", false));
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn a_self_signed_certificate_is_taken_if_it_is_named_itself() {
    let authority = authority();
    let is_authority = |params: &mut rcgen::CertificateParams| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    };
    let is_server = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    };
    authority.sign_itself("own", "sensor-7", is_authority);
    authority.sign_itself("other", "sensor-7", is_authority);
    authority.sign_itself("server-only", "sensor-7", is_server);
    let read = |name: &str| std::fs::read_to_string(authority.path(name)).expect("read");
    authority.write("named.pem", &(read("ca.pem") + &read("own.pem") + &read("server-only.pem")));
    let mut options = server_options(&authority);
    options.client_auth = ClientAuth::Require;
    options.client_ca = Some(authority.path("named.pem"));
    let (mut listener, url) = listen_with(&context(options));
    let mut show = |name: &str| {
        shown_to_server(&mut listener, &url, &with_certificate(&authority, name, false))
    };
    assert_eq!(show("own").expect("accepted").common_name, "sensor-7");
    assert!(show("other").is_err(), "the same name, and not in the file");
    assert!(show("server-only").is_err(), "its usage is another one");
}

#[test]
fn a_server_without_alternative_names_is_known_by_its_common_name() {
    let authority = authority();
    let is_authority = |params: &mut rcgen::CertificateParams| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    };
    for (subject, is_good) in
        [("localhost", true), ("LOCALHOST", true), ("other", false), ("*", false)]
    {
        authority.issue_nameless("bare", subject);
        authority.sign_itself("own", subject, is_authority);
        for (name, ca) in [("bare", "ca.pem"), ("own", "own.pem")] {
            let options = TlsOptions::new(
                authority.path(&format!("{name}.pem")),
                authority.path(&format!("{name}.key")),
            );
            let (mut listener, url) = listen_with(&context(options));
            let ca = Some(authority.path(ca));
            let options = TlsClientOptions { ca, ..TlsClientOptions::default() };
            let client = pair(&mut listener, &connect_with(&url, &options)).1;
            assert_eq!(client.is_ok(), is_good, "{name} {subject}: {:?}", client.err());
        }
    }
    // With alternative names, the common name counts for nothing.
    authority.issue_named("named", "localhost", "other.example");
    let options = TlsOptions::new(authority.path("named.pem"), authority.path("named.key"));
    let (mut listener, url) = listen_with(&context(options));
    let client = pair(&mut listener, &connect_with(&url, &client_options(&authority))).1;
    assert!(client.is_err());
}

#[test]
fn what_is_no_tls_is_reported_as_what_it_is() {
    let authority = authority();
    for (bytes, foreign) in [
        (&b"\x10\x0d\0\x04MQTT\x05\x02\0\0\0\0\0"[..], Foreign::Mqtt),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Foreign::Http),
    ] {
        let (mut listener, url) = listen_with(&context(server_options(&authority)));
        let address = url.replace("tls://localhost", "127.0.0.1");
        let mut client = TcpStream::connect(address).expect("connect");
        client.write_all(bytes).expect("write");
        let error = serve(&mut listener).err().expect("an error");
        assert!(matches!(error, HandshakeError::Foreign(found) if found == foreign), "{error}");
    }
}

/// For this test only.
const SHORT_KEY: &str = "\
-----BEGIN RSA PRIVATE KEY-----
MIICXgIBAAKBgQDH2VeXHDI30dF5TO16zvnwK8Rs9hXis8BAXRx2WsJ8TU7d7B2g
mCcXDY6QPeHJ8ltNodbrMW7CdjE8TLr+h+hR3/ZLi3vhx4DegAWcvQcTdim3JPTM
FW3tl6tTb9K/67tQ9Y4QomcBw7Xhl3vOu/E0dSfigJbQ2ybiLalw1waTCQIDAQAB
AoGBAJtWOFrgM7hngiaCwOQAFQ21N0xqSsCXbwuYVBM6oIj1niOo765wFZI5m2JK
d0H8+zLwZJkTJ0BHliWEjqRhBxWckFLtzBeHS1if1hB/Po9gmKmUV1385SXNSqoI
D3K+vmRKzi2Rb0Q40dviwaAl9x2TLolXYupp18v60xJoPJ/BAkEA7xyQYLCdwtsj
9rMMLLbwjjWxCs6XazpUDbTJod5ctfBsC4cTBuieroqpQ6Nqs1ZZ3BqPTtG+rdrT
yut1ad0rPQJBANX23JDwBpba/+SIQXSY1Rhb3Dl2qaM125UET8a14EY10m8w8RsY
9rZBpoEBznnnZ6mn4yLAlEYXileR88+qs70CQQC1GbhMU1iZrep2PjQZZdGalBXs
bn6Gy13AJ86Tl9w2PMtIi9ygXe1Zm1IKFaqJ+/wBVeh2tSurd9LznRSHwuitAkB3
gevOdJJpnibBga11r4uOkHhgDDxR8doU0JSye5GqBZPlESQKK5ZZVC/o7JZkFnEb
HK/MEF6BC9L0eIwCmOjNAkEAhX6DtWTvoi6WFHFmhn0BdPlCeFX4WBMvn9LMtM82
kGCouVxMF5IVV5/SRG17XITrfIGaPonaRCPJmPVUwScxKA==
-----END RSA PRIVATE KEY-----
";
