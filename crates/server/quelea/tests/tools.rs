//! The program as people use it: a broker as a child process, and the tools beside it.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

const QUELEA: &str = env!("CARGO_BIN_EXE_quelea");

/// A broker on a free port with its files in a directory; both end with the test.
struct Broker {
    dir: PathBuf,
    child: Child,
    log: BufReader<ChildStderr>,
    /// Where it listens, in the order of the configuration.
    urls: Vec<String>,
}

impl Broker {
    fn start(name: &str, files: &[(&str, &str)], config: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("quelea-tools-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
        let config = format!("{BASE}{config}").replace("DIR", &dir.display().to_string());
        fs::write(dir.join("quelea.toml"), config).unwrap();
        let mut child = Command::new(QUELEA)
            .args(["serve", "--config", "quelea.toml", "--data", "data", "--workers", "2"])
            .current_dir(&dir)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut broker = Self { dir, child, log, urls: Vec::new() };
        let lines = broker.log_until("ready");
        let url =
            |line: &str| Some(line.split(" url=").nth(1)?.split_whitespace().next()?.to_owned());
        broker.urls = lines.lines().filter_map(url).collect();
        broker
    }

    /// Reads the log up to a line that has `text`.
    fn log_until(&mut self, text: &str) -> String {
        let mut all = String::new();
        while !all.lines().last().is_some_and(|line| line.contains(text)) {
            let count = self.log.read_line(&mut all).unwrap();
            assert!(count > 0, "the broker ended without saying '{text}': {all}");
        }
        all
    }

    fn port(&self, index: usize) -> &str {
        let address = self.urls[index].split('/').nth(2).unwrap();
        address.rsplit(':').next().unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn command(&self, tool: &str, arguments: &str) -> Command {
        let mut command = Command::new(QUELEA);
        command.arg(tool).args(["-h", "127.0.0.1", "-p", self.port(0)]);
        command.args(arguments.split_whitespace()).current_dir(&self.dir);
        command
    }

    fn run(&self, tool: &str, arguments: &str) -> Output {
        self.command(tool, arguments).stdin(Stdio::null()).output().unwrap()
    }

    fn code(&self, tool: &str, arguments: &str) -> i32 {
        self.run(tool, arguments).status.code().unwrap()
    }

    /// A `quelea sub` that has its subscription.
    fn subscriber(&self, arguments: &str) -> Subscriber {
        let mut child = self
            .command("sub", &format!("-d {arguments}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("subscribed to") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "no subscription");
        }
        Subscriber { child, _stderr: lines }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

struct Subscriber {
    child: Child,
    /// Kept open, or the child could not tell any more.
    _stderr: BufReader<ChildStderr>,
}

impl Subscriber {
    /// Waits for its end: what it printed, and its exit code.
    fn output(mut self) -> (String, i32) {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        (text, self.child.wait().unwrap().code().unwrap())
    }
}

fn passwd(file: &Path, arguments: &[&str]) {
    let status = Command::new(QUELEA).args(["passwd", "-b"]).arg(file).args(arguments).status();
    assert!(status.unwrap().success());
}

const TRANSPORTS: &str = r#"
[[listeners]]
url = "tls://127.0.0.1:0"
tls = { certificate = "server.pem", key = "server.key" }

[[listeners]]
url = "tls://127.0.0.1:0"
identity_from_certificate = "cn"
[listeners.tls]
certificate = "server.pem"
key = "server.key"
client_ca = "ca.pem"
client_auth = "require"

[[listeners]]
url = "ws://127.0.0.1:0/mqtt"

[[listeners]]
url = "wss://127.0.0.1:0"
tls = { certificate = "server.pem", key = "server.key" }

[[listeners]]
url = "unix://DIR/q.sock"

[access]
acl_file = "acl"
"#;

const BASE: &str = "http.listen = \"off\"\n[[listeners]]\nurl = \"tcp://127.0.0.1:0\"\n";

#[test]
fn messages_go_from_pub_to_sub_in_every_version_and_qos() {
    let broker = Broker::start("versions", &[], "");
    for version in ["5", "311", "31"] {
        for qos in ["0", "1", "2"] {
            let subscriber =
                broker.subscriber(&format!("-t a/+ -q {qos} -V {version} -C 2 -v -W 30"));
            for text in ["one", "two"] {
                let arguments = format!("-t a/b -m {text} -q {qos} -V {version}");
                assert_eq!(broker.code("pub", &arguments), 0, "{version} {qos}");
            }
            let (text, code) = subscriber.output();
            assert_eq!((text.as_str(), code), ("a/b one\na/b two\n", 0), "{version} {qos}");
        }
    }
}

#[test]
fn lines_files_and_properties_are_published() {
    let broker = Broker::start("sources", &[("payload", "from\na file")], "");
    let subscriber = broker.subscriber("-t t -q 2 -C 5 -F %p|%C|%P|%r -W 30");
    let mut lines = broker.command("pub", "-t t -l -q 2").stdin(Stdio::piped()).spawn().unwrap();
    lines.stdin.take().unwrap().write_all(b"first\nsecond\r\nthird").unwrap();
    assert!(lines.wait().unwrap().success());
    assert_eq!(broker.code("pub", "-t t -f payload -q 1"), 0);
    let properties = "-D publish content-type text -D publish user-property k v";
    assert_eq!(broker.code("pub", &format!("-t t -n {properties}")), 0);
    let (text, code) = subscriber.output();
    let expected = "first|||0\nsecond|||0\nthird|||0\nfrom\na file|||0\n|text|k:v|0\n";
    assert_eq!((text.as_str(), code), (expected, 0));
}

#[test]
fn lines_that_are_long_in_coming_do_not_cost_the_connection() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let mut publisher = Command::new(QUELEA)
        .args(["pub", "-h", "127.0.0.1", "-p", &port, "-t", "a", "-l", "-k", "4"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut socket, _) = server.accept().unwrap();
    let mut bytes = [0; 256];
    assert!(socket.read(&mut bytes).unwrap() > 0, "CONNECT");
    socket.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
    let count = socket.read(&mut bytes).unwrap();
    assert_eq!(bytes[..count], [0xC0, 0], "PINGREQ");
    socket.write_all(&[0xD0, 0]).unwrap();
    publisher.stdin.take().unwrap().write_all(b"x\n").unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    let publish = [0x30, 5, 0, 1, b'a', 0, b'x'];
    assert!(rest.windows(publish.len()).any(|window| window == publish), "{rest:?}");
    assert!(publisher.wait().unwrap().success());
}

#[test]
fn retained_messages_are_shown_and_cleared() {
    let broker = Broker::start("retained", &[], "");
    assert_eq!(broker.code("pub", "-t r/1 -m x -r -q 1"), 0);
    let shown = broker.run("sub", "-t r/# -C 1 -F %t:%p:%r -W 30");
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), "r/1:x:1\n");
    assert_eq!(broker.code("sub", "-t r/# -C 1 --remove-retained -W 30"), 0);
    assert_eq!(broker.code("sub", "-t r/# -C 1 -W 1"), 27, "nothing is left, and time passes");
    assert_eq!(broker.code("sub", "-t r/# -E"), 0);
}

#[test]
fn passwords_scram_and_access_rules_hold_and_are_read_again() {
    let acl = "user anna\ntopic readwrite a/#\ntopic deny a/no\n";
    let config = "[auth]\npassword_file = \"passwords\"\n[access]\nacl_file = \"acl\"\n";
    let seed = std::env::temp_dir().join(format!("quelea-tools-{}.pw", std::process::id()));
    passwd(&seed, &["--scram", "anna", "s3cret"]);
    let passwords = fs::read_to_string(&seed).unwrap();
    fs::remove_file(&seed).unwrap();
    let mut broker = Broker::start("auth", &[("passwords", &passwords), ("acl", acl)], config);
    let anna = "-u anna -P s3cret";
    assert_eq!(broker.code("pub", &format!("{anna} -t a/x -m 1 -q 1")), 0);
    assert_eq!(broker.code("pub", &format!("{anna} --scram -t a/x -m 1 -q 1")), 0);
    assert_eq!(broker.code("pub", &format!("{anna} -V 311 -t a/x -m 1")), 0);
    assert_eq!(broker.code("pub", "-u anna -P wrong -t a/x -m 1"), 0x87);
    assert_eq!(broker.code("pub", "-u anna -P wrong -V 311 -t a/x -m 1"), 5);
    assert_eq!(broker.code("pub", "-t a/x -m 1"), 0x87);
    let scram = broker.run("pub", "-u anna -P wrong --scram -t a/x -m 1");
    assert!(matches!(scram.status.code(), Some(0x86 | 0x87)), "{scram:?}");
    for refused in ["pub -t b -m 1 -q 1", "pub -t a/no -m 1 -q 1", "sub -t b/# -W 30"] {
        let (tool, rest) = refused.split_once(' ').unwrap();
        let output = broker.run(tool, &format!("{anna} {rest}"));
        let lines = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && lines.contains("0x87"), "{refused}: {lines}");
    }
    passwd(&broker.dir.join("passwords"), &["bob", "geheim"]);
    fs::write(broker.dir.join("acl"), "user bob\ntopic write b\n").unwrap();
    broker.signal("-HUP");
    broker.log_until("access rules reloaded");
    assert_eq!(broker.code("pub", "-u bob -P geheim -t b -m 1 -q 1"), 0);
    assert_eq!(broker.code("pub", &format!("{anna} -t a/x -m 1 -q 1")), 1, "no rules any more");
}

#[test]
fn a_broker_that_stops_notifies_its_clients_and_ends_well() {
    let mut broker = Broker::start("stop", &[], "[server]\nshutdown_grace_secs = 5\n");
    let subscriber = broker.subscriber("-t a --no-reconnect -W 60");
    broker.signal("-TERM");
    let (_, code) = subscriber.output();
    assert_eq!(code, 1);
    assert_eq!(broker.child.wait().unwrap().code(), Some(0));
}

#[test]
fn every_transport_reaches_the_broker() {
    let certificate = |name: &str, issuer: &CertifiedIssuer<'static, KeyPair>| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, issuer).unwrap();
        (signed.pem(), key.serialize_pem())
    };
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let (server, server_key) = certificate("server", &ca);
    let (anna, anna_key) = certificate("anna", &ca);
    let files = [
        ("ca.pem", ca.pem()),
        ("server.pem", server),
        ("server.key", server_key),
        ("anna.pem", anna),
        ("anna.key", anna_key),
        ("acl", "topic readwrite open\nuser anna\ntopic readwrite anna\n".to_owned()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (*name, &**text)).collect();
    let broker = Broker::start("transports", &files, TRANSPORTS);
    let output = |index: usize, rest: &str| {
        let port = if index == 5 { String::new() } else { format!("-p {}", broker.port(index)) };
        let arguments = format!("pub -h localhost {port} {rest} -m x -q 1");
        let mut command = Command::new(QUELEA);
        command.args(arguments.split_whitespace()).current_dir(&broker.dir);
        command.output().unwrap()
    };
    let run = |index: usize, rest: &str| output(index, rest).status.code().unwrap();
    let socket = broker.dir.join("q.sock").display().to_string();
    assert_eq!(run(1, "--cafile ca.pem -t open"), 0, "TLS");
    assert_eq!(run(1, "--tls -t open"), 1, "an authority that nobody trusts");
    assert_eq!(run(1, "--insecure -t open"), 0);
    assert_eq!(run(2, "--cafile ca.pem --cert anna.pem --key anna.key -t anna"), 0, "a user name");
    assert_eq!(run(2, "--cafile ca.pem --cert anna.pem --key anna.key -t open"), 1);
    assert_eq!(run(2, "--cafile ca.pem -t open"), 1, "no certificate");
    assert_eq!(run(3, "--ws --ws-path /mqtt -t open"), 0, "WebSocket");
    assert_eq!(run(3, "--ws --ws-path /other -t open"), 1);
    assert_eq!(run(4, "--ws --cafile ca.pem -t open"), 0, "secure WebSocket");
    assert_eq!(run(5, &format!("--unix {socket} -t open")), 0, "Unix socket");
    for (index, flags, hint) in [
        (1, "-t open", "does not speak MQTT"),
        (3, "-t open", "does not speak MQTT"),
        (1, "--tls -t open", "set the file of its CA"),
    ] {
        let lines = String::from_utf8(output(index, flags).stderr).unwrap();
        assert!(lines.contains(hint), "listener {index}, {flags}: {lines}");
    }
}

#[test]
fn an_expired_certificate_is_reported_and_can_be_renewed() {
    let made = |year| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let (old, old_key) = made(2001);
    let files = [("server.pem", &*old), ("server.key", &*old_key)];
    let tls = "[[listeners]]\nurl = \"tls://127.0.0.1:0\"\n\
               tls = { certificate = \"server.pem\", key = \"server.key\" }\n";
    let mut broker = Broker::start("expired", &files, tls);
    let lines = broker.log_until("TLS certificate expired");
    assert!(lines.contains("listener=tls://127.0.0.1:0"), "{lines}");
    let (port, dir) = (broker.port(1).to_owned(), broker.dir.clone());
    let arguments = ["pub", "-p", &port, "--cafile", "server.pem", "-t", "a", "-m", "x"];
    let publish = || Command::new(QUELEA).args(arguments).current_dir(&dir).output().unwrap();
    let refused = String::from_utf8(publish().stderr).unwrap();
    assert!(refused.contains("expired"), "{refused}");
    let (new, new_key) = made(2999);
    fs::write(dir.join("server.pem"), new).unwrap();
    fs::write(dir.join("server.key"), new_key).unwrap();
    broker.signal("-HUP");
    let lines = broker.log_until("certificates reloaded");
    assert!(!lines.contains("expired"), "{lines}");
    assert!(publish().status.success());
}

#[test]
fn wrong_usage_and_wrong_configuration_end_with_two() {
    let dir = std::env::temp_dir();
    let run = |arguments: &[&str]| {
        let output = Command::new(QUELEA).args(arguments).current_dir(&dir).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, lines) = run(&["serve", "--listen", "tcp://0.0.0.0:0"]);
    assert!(code == 2 && lines.contains("--allow-anonymous"), "{lines}");
    let (code, lines) = run(&["serve", "--config", "/nonexistent.toml"]);
    assert!(code == 2 && lines.contains("/nonexistent.toml"), "{lines}");
    assert_eq!(run(&["sub", "-t", "a/#/b"]).0, 2);
    // What mosquitto's clients take besides: known, so that only the -c without -i is wrong.
    let others = ["--nodelay", "-M", "20", "-x", "-1", "--tls-use-os-certs", "-u", "u", "-P", "-p"];
    let (code, lines) = run(&[&["pub", "-t", "a", "-m", "x", "-c"], &others[..]].concat());
    assert!(code == 2 && lines.contains("-c needs -i"), "{lines}");
    assert_eq!(run(&["pub", "-t", "a"]).0, 2);
    let (code, lines) = run(&["pub", "-t", "a/#", "-m", "x"]);
    assert!(code == 2 && lines.contains("wildcard"), "{lines}");
    assert_eq!(run(&["pub", "-t", "", "-m", "x"]).0, 2);
    assert_eq!(run(&["pub", "-t", "a", "-m", "x", "-V", "311", "-D", "publish", "a", "b"]).0, 2);
    assert_eq!(run(&["serve", "--check-config", "--port", "0", "--http", "off"]).0, 0);
    let ports = "http.listen = 'off'\n[[listeners]]\nurl = 'tls://[::1]:0'\n";
    for (key, says) in [
        ("[auth]\npassword_file", "cannot read password file"),
        ("[access]\nacl_file", "cannot read access file"),
        ("tls.key = 'k'\ntls.certificate", "cannot read"),
    ] {
        let file = dir.join(format!("quelea-check-{}.toml", std::process::id()));
        let ports = match key.starts_with("tls") {
            true => ports.to_owned(),
            false => ports.replace("tls:", "tcp:"),
        };
        fs::write(&file, format!("{ports}{key} = 'none.such'")).unwrap();
        for only_check in [&["--check-config"][..], &[]] {
            let config = ["serve", "--config", file.to_str().unwrap()];
            let (code, lines) = run(&[&config[..], only_check].concat());
            assert_eq!(code, 2, "{lines}");
            let is_reported_once = lines.matches("No such file").count() == 1;
            assert!(
                is_reported_once && lines.contains(says) && lines.contains("none.such"),
                "{lines}"
            );
        }
        fs::remove_file(&file).unwrap();
    }
    let printed = Command::new(QUELEA).args(["serve", "--print-config"]).output().unwrap();
    assert!(String::from_utf8(printed.stdout).unwrap().contains("qos_max = 2 # default"));
    for long in [&["serve", "--print-config"][..], &["completions", "zsh"]] {
        let mut child = Command::new(QUELEA).args(long).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{long:?} for a reader that went away");
    }
    let completions = Command::new(QUELEA).args(["completions", "bash"]).output().unwrap();
    assert!(String::from_utf8(completions.stdout).unwrap().contains("quelea"));
}

#[test]
fn man_writes_a_page_for_each_command() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("man-{}", std::process::id()));
    let man = || Command::new(QUELEA).arg("man").arg(&dir).output().unwrap();
    let refused = man();
    let report = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && report.contains("No such file"), "{report}");
    fs::create_dir_all(&dir).unwrap();
    assert!(man().status.success());
    let page = fs::read_to_string(dir.join("quelea-serve.1")).unwrap();
    assert!(page.contains(".TH quelea") && page.contains("config"), "{page}");
    assert!(dir.join("quelea.1").exists() && dir.join("quelea-passwd.1").exists());
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn flock_is_run_under_the_name_that_no_other_program_has() {
    use std::os::unix::fs::symlink;

    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("flock-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let quelea = dir.join("quelea");
    fs::hard_link(QUELEA, &quelea).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(&quelea).arg("flock").args(arguments).env("PATH", &dir).output().unwrap()
    };
    // That of util-linux, say.
    symlink("/bin/true", dir.join("flock")).unwrap();
    let missing = run(&["list"]);
    let text = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(1), "{text}");
    assert!(text.contains("quelea-flock"), "{text}");

    symlink("/bin/echo", dir.join("quelea-flock")).unwrap();
    let done = run(&["run", "MB-B1", "--help"]);
    assert_eq!(String::from_utf8(done.stdout).unwrap(), "run MB-B1 --help\n");
    assert_eq!(done.status.code(), Some(0));
    fs::remove_dir_all(&dir).unwrap();
}
