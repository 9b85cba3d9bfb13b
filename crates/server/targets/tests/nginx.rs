//! The webhook target against a real nginx: what arrives there, and what its answers mean. Without
//! nginx (`NGINX_BIN`, or in the path) the test says that it was skipped.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use targets::webhook::{Settings, Webhook};
use targets::{Batch, Networks, Outcome, Record, Secret, System, Target, Threads};

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The port is put in for `PORT`, the directory for `DIR`.
const CONFIG: &str = r#"
daemon off;
master_process off;
pid DIR/pid;
error_log DIR/error.log;
events {}
http {
    log_format own '$connection $request_uri $status "$content_type" "$http_x_site" "$http_x_hot" '
                   '"$http_authorization" $request_body';
    access_log DIR/access.log own;
    client_body_temp_path DIR/body;
    proxy_temp_path DIR/proxy;
    fastcgi_temp_path DIR/fastcgi;
    uwsgi_temp_path DIR/uwsgi;
    scgi_temp_path DIR/scgi;
    client_max_body_size 1k;
    client_body_in_single_buffer on;
    server {
        listen 127.0.0.1:PORT;
        location = /accepted { proxy_pass http://127.0.0.1:PORT/inside; }
        location = /inside { access_log off; return 204; }
        location = /secret {
            if ($http_authorization != "Bearer hunter2") { return 401; }
            return 204;
        }
        location = /invalid { return 422; }
        location = /broken { return 500; }
        location = /moved { return 301 http://127.0.0.1:PORT/accepted; }
        location = /busy { add_header Retry-After 7 always; return 429; }
        location = /gone { return 410; }
        location = /gateway { proxy_pass http://127.0.0.1:1; }
    }
}
"#;

struct Nginx {
    child: Child,
    directory: tempfile::TempDir,
    port: u16,
}

impl Nginx {
    /// None: there is none on this machine.
    fn start() -> Option<Self> {
        let program = program()?;
        let directory = tempfile::tempdir().expect("a directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let path = directory.path().join("nginx.conf");
        let own = directory.path().display().to_string();
        let text = CONFIG.replace("PORT", &port.to_string()).replace("DIR", &own);
        std::fs::write(&path, text).expect("it can be written");
        let child = Command::new(program)
            .args(["-p", &own, "-c"])
            .arg(&path)
            .stderr(Stdio::inherit())
            .spawn()
            .expect("it can be started");
        let nginx = Self { child, directory, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(
                began.elapsed() < PATIENCE,
                "nginx does not listen: {}",
                nginx.read("error.log")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(nginx)
    }

    fn settings(&self, path: &str) -> Settings {
        Settings {
            networks: Networks::permitting(vec!["127.0.0.0/8".parse().expect("a network")]),
            ..Settings::new(&format!("http://127.0.0.1:{}{path}", self.port))
        }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    /// Lines of the access log about a path, which nginx writes after the answer.
    fn lines(&self, path: &str, count: usize) -> Vec<String> {
        let began = Instant::now();
        loop {
            let log = self.read("access.log");
            let wanted = format!(" {path} ");
            let lines: Vec<String> =
                log.lines().filter(|line| line.contains(&wanted)).map(str::to_owned).collect();
            if lines.len() >= count {
                return lines;
            }
            assert!(began.elapsed() < PATIENCE, "{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> Option<PathBuf> {
    if let Some(program) = std::env::var_os("NGINX_BIN") {
        return Some(program.into());
    }
    let known = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"];
    known.iter().map(Path::new).find(|path| path.exists()).map(Path::to_owned)
}

fn record(value: &str) -> Record {
    let headers = [("content-type", "application/json"), ("x-hot", "81.5")];
    Record {
        topic: "t".into(),
        key: None,
        value: value.to_owned().into(),
        headers: headers.map(|(name, value)| (name.into(), value.into())).into(),
        time_ms: None,
    }
}

/// Sends one batch.
fn outcomes(threads: &Threads, settings: Settings, values: &[&str]) -> Vec<Outcome> {
    let (answered, answers) = channel();
    let report = Arc::new(move |answer| {
        let _ = answered.send(answer);
    });
    let target = Webhook::start(threads, settings, Arc::new(System), report).expect("it is valid");
    let records = values.iter().map(|value| record(value)).collect();
    target.send(Batch { id: 1, records, is_alone: values.len() == 1 }).expect("there is room");
    answers.recv_timeout(PATIENCE).expect("an answer").outcomes
}

#[test]
fn nginx_gets_what_a_webhook_sends() {
    let Some(nginx) = Nginx::start() else {
        // Not by a macro, whose output the test runner keeps to itself.
        let _ = writeln!(std::io::stderr(), "skipped: nginx is not installed");
        return;
    };
    let threads = Threads::start().expect("threads");
    let outcomes = |settings, values: &[&str]| outcomes(&threads, settings, values);

    let settings = Settings {
        headers: vec![("x-site".into(), Secret::Text("berlin".into()))],
        ..nginx.settings("/accepted")
    };
    assert_eq!(outcomes(settings.clone(), &["[1]", "[2]"]), [Outcome::Accepted, Outcome::Accepted]);
    let lines = nginx.lines("/accepted", 2);
    let parts: Vec<_> =
        lines.iter().map(|line| line.split_once(' ').expect("it has parts")).collect();
    let sent = "/accepted 204 \"application/json\" \"berlin\" \"81.5\" \"-\"";
    assert_eq!([parts[0].1, parts[1].1], [format!("{sent} [1]"), format!("{sent} [2]")]);
    assert_eq!(parts[0].0, parts[1].0, "both on one connection");

    let batched = Settings { is_batched: true, ..settings };
    assert_eq!(outcomes(batched, &["{}", "1"]), [Outcome::Accepted, Outcome::Accepted]);
    let line = nginx.lines("/accepted", 3).pop().expect("it is there");
    let is_batch = line.contains("application/cloudevents-batch+json; charset=utf-8");
    assert!(is_batch && line.ends_with(" [{},1]"), "{line}");

    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), "Bearer hunter2\n").expect("it can be written");
    let with_secret = |secret: Secret| Settings {
        headers: vec![("authorization".into(), secret)],
        ..nginx.settings("/secret")
    };
    let right = with_secret(Secret::File(secret.path().to_owned()));
    assert_eq!(outcomes(right, &["{}"]), [Outcome::Accepted]);
    let wrong = outcomes(with_secret(Secret::Text("Bearer x".into())), &["{}"]);
    assert!(matches!(&wrong[..], [Outcome::Unavailable(_)]), "{wrong:?}");

    let found = outcomes(nginx.settings("/accepted"), &[&"x".repeat(2_000)]);
    assert!(matches!(&found[..], [Outcome::Refused(why)] if why.contains("413")), "{found:?}");
    let found = outcomes(nginx.settings("/invalid"), &["{}"]);
    assert!(matches!(&found[..], [Outcome::Refused(why)] if why.contains("422")), "{found:?}");
    let began = Instant::now();
    let found = outcomes(nginx.settings("/busy"), &["{}"]);
    let is_paused = |until: &Instant| *until > began + Duration::from_secs(5);
    let is_busy = matches!(&found[..], [Outcome::BusyUntil(until, _)] if is_paused(until));
    assert!(is_busy, "{found:?}");
    for path in ["/broken", "/gateway"] {
        let found = outcomes(nginx.settings(path), &["{}"]);
        assert!(found.iter().all(Outcome::is_open), "{path}: {found:?}");
    }
    for path in ["/moved", "/gone", "/missing"] {
        let found = outcomes(nginx.settings(path), &["{}"]);
        assert!(matches!(&found[..], [Outcome::Unavailable(_)]), "{path}: {found:?}");
    }
    assert_eq!(nginx.lines("/accepted", 4).len(), 4, "a redirection is not followed");
}
