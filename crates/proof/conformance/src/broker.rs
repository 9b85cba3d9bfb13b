//! The server under test: a foreign one by its address, or our own binary started for the run.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Where the server listens for TCP. Our own is started by the first test that asks.
pub fn address() -> SocketAddr {
    static SHARED: OnceLock<(SocketAddr, Option<Quelea>)> = OnceLock::new();
    let (address, _) = SHARED.get_or_init(|| match foreign() {
        Some(address) => (address, None),
        None => {
            let quelea = Quelea::start(STANDARD);
            (quelea.address("tcp"), Some(quelea))
        }
    });
    *address
}

/// A server that no other test uses, where it is our own. Ends with the second value.
pub fn undisturbed() -> (SocketAddr, Option<Quelea>) {
    if !is_ours() {
        return (address(), None);
    }
    let quelea = Quelea::start(STANDARD);
    (quelea.address("tcp"), Some(quelea))
}

/// A server that grants QoS 2 to shared subscriptions of sessions that outlive their connection:
/// our own does so for those that it keeps in memory. Ends with the second value.
pub fn granting_shared_qos_2() -> (SocketAddr, Option<Quelea>) {
    if !is_ours() {
        return (address(), None);
    }
    let quelea = Quelea::start(&format!("{PLAIN}\n[durability]\nlevel = \"memory\"\n"));
    (quelea.address("tcp"), Some(quelea))
}

/// Whether the server under test is our own, which is held to more than the standard's minimum.
pub fn is_ours() -> bool {
    foreign().is_none()
}

fn foreign() -> Option<SocketAddr> {
    let name = std::env::var("MQTT_ADDRESS").ok()?;
    let mut addresses = name.to_socket_addrs().expect("MQTT_ADDRESS is host:port");
    Some(addresses.next().expect("MQTT_ADDRESS resolves"))
}

/// A `quelea serve` of its own, with its own configuration and data. It ends when this value is
/// dropped, and also when the test process ends without dropping it: a small shell in between
/// waits for the end of its standard input, which the kernel closes with the process.
pub struct Quelea {
    child: Child,
    stdin: Option<ChildStdin>,
    urls: Vec<String>,
    log: Arc<Mutex<Vec<String>>>,
    directory: PathBuf,
}

impl Quelea {
    /// Starts the broker with a configuration file of this text and waits until it is ready.
    pub fn start(config: &str) -> Self {
        let directory = scratch_directory();
        Self::start_in(&directory, config)
    }

    /// The same with a directory that holds files the configuration names; `{dir}` in the
    /// configuration stands for it.
    pub fn start_in(directory: &Path, config: &str) -> Self {
        let file = directory.join("quelea.toml");
        let config = config.replace("{dir}", &directory.display().to_string());
        fs::write(&file, config).expect("the scratch directory is writable");
        let mut child = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .arg(binary())
            .args(["serve", "--log-format", "json", "--config"])
            .arg(&file)
            .arg("--data")
            .arg(directory.join("data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let stdin = child.stdin.take();
        let stderr = child.stderr.take().expect("standard error is a pipe");
        let log = Arc::new(Mutex::new(Vec::new()));
        let urls = wait_until_ready(stderr, &log);
        Self { child, stdin, urls, log, directory: directory.to_owned() }
    }

    /// Address of the first listener with this scheme.
    pub fn address(&self, scheme: &str) -> SocketAddr {
        let prefix = format!("{scheme}://");
        let url = self.urls.iter().find_map(|url| url.strip_prefix(&prefix));
        let url = url.unwrap_or_else(|| panic!("no {scheme} listener in {:?}", self.urls));
        let authority = url.split('/').next().expect("split gives at least one part");
        authority.parse().unwrap_or_else(|_| panic!("{authority} is no address"))
    }

    /// Where its configuration and data are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The log so far, one line per event.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("the reader does not panic").clone()
    }
}

impl Drop for Quelea {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ended = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the broker:\n{}", self.log().join("\n"));
        } else {
            let _left = fs::remove_dir_all(&self.directory);
        }
    }
}

/// An empty directory for one broker.
pub fn scratch_directory() -> PathBuf {
    let name = crate::fresh("quelea").replace('/', "-");
    let directory = std::env::temp_dir().join(name);
    let _absent = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("the temporary directory is writable");
    directory
}

/// Reads the log in a thread of its own; returns the listeners' addresses once it says ready.
fn wait_until_ready(stderr: ChildStderr, log: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let lines = Arc::clone(log);
    std::thread::spawn(move || read_log(stderr, &lines, &sender));
    let mut urls = Vec::new();
    loop {
        match receiver.recv_timeout(START_PATIENCE) {
            Ok(Some(url)) => urls.push(url),
            Ok(None) => return urls,
            Err(_) => panic!(
                "the broker did not say that it is ready:\n{}",
                log.lock().expect("the reader does not panic").join("\n")
            ),
        }
    }
}

/// Sends the address of every listener, then `None` for ready.
fn read_log(stderr: ChildStderr, log: &Mutex<Vec<String>>, sender: &Sender<Option<String>>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        let sent = if line.contains(r#""message":"listening""#) {
            let url = line.split(r#""url":""#).nth(1).and_then(|rest| rest.split('"').next());
            sender.send(Some(url.unwrap_or_default().to_owned()))
        } else if line.contains(r#""message":"ready""#) {
            sender.send(None)
        } else {
            Ok(())
        };
        // Nobody waits for addresses once the broker is ready.
        let _ = sent;
        log.lock().expect("no holder of the log panics").push(line);
    }
}

/// `QUELEA_BIN`, or the binary that the same cargo build puts beside this test's directory.
fn binary() -> PathBuf {
    if let Ok(path) = std::env::var("QUELEA_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test knows its own path");
    let path = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("quelea");
    assert!(path.exists(), "{} is missing: cargo build -p quelea --bin quelea", path.display());
    path
}

/// Starts its arguments, and ends them when standard input ends.
const GUARD: &str = r#""$@" & pid=$!; read -r _; kill "$pid" 2>/dev/null; wait "$pid""#;

/// One plain listener on a free port of loopback, nothing else.
pub const PLAIN: &str = r#"
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true

[http]
listen = "127.0.0.1:0"
"#;

/// The same with names and properties as long as the standard has them.
const STANDARD: &str = r#"
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true

[http]
listen = "127.0.0.1:0"

[limits]
topic_bytes_max = 65535
client_id_bytes_max = 65535
properties_bytes_max = "1MiB"
"#;

const START_PATIENCE: Duration = Duration::from_secs(30);
