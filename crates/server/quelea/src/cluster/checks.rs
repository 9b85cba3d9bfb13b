//! What `quelea cluster init` demands of the NATS servers: their version, their number, and that
//! they sync before they acknowledge.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use async_nats::ServerInfo;
use net::Url;
use serde_json::Value;

use super::connect;
use config::ClusterConfig;

/// What is accepted in spite of the promise that a cluster makes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowed {
    pub(super) unreplicated: bool,
    pub(super) unsynced: bool,
}

/// Asks all servers of the configuration, and those of the monitoring URLs. Returns what an
/// operator should know.
///
/// # Errors
///
/// When a server is not good enough.
pub(super) async fn check(
    config: &ClusterConfig,
    monitoring: &[String],
    allowed: Allowed,
) -> anyhow::Result<Vec<String>> {
    let mut notes = Vec::new();
    let mut ids = BTreeSet::new();
    let mut announced = 0;
    for server in &config.servers {
        match connect::server_info(config, &server.url).await {
            Ok(info) => {
                check_server(&server.url, &info)?;
                announced = announced.max(info.connect_urls.len());
                ids.insert(info.server_id);
            }
            Err(error) => notes.push(format!("{} was not checked: {error:#}", server.url)),
        }
    }
    let servers = ids.len().max(announced);
    ensure!(
        servers >= SERVERS_MIN || allowed.unreplicated,
        "the NATS cluster needs at least {SERVERS_MIN} servers to survive the loss of one, got {servers}; add servers, or use --allow-unreplicated"
    );
    let mut syncing = named_that_sync(monitoring, allowed.unsynced)?;
    if monitoring.is_empty() {
        syncing.extend(usual_that_sync(config).filter(|id| ids.contains(id)));
    }
    demand_sync(servers, syncing.len(), allowed.unsynced)?;
    Ok(notes)
}

fn check_server(url: &str, info: &ServerInfo) -> anyhow::Result<()> {
    let version = version(&info.version);
    ensure!(
        version.is_some_and(|version| version >= VERSION_MIN),
        "{url}: NATS must be 2.15 or newer, got {}",
        info.version
    );
    ensure!(
        info.jetstream,
        "{url} has no JetStream: add `jetstream {{ store_dir: ..., sync_interval: always }}` to \
         its configuration"
    );
    Ok(())
}

fn demand_sync(servers: usize, syncing: usize, allows_unsynced: bool) -> anyhow::Result<()> {
    let unknown = servers.saturating_sub(syncing);
    ensure!(
        unknown == 0 || allows_unsynced,
        "could not verify that {unknown} of {servers} NATS servers sync before they acknowledge. Open their monitoring ports (`http: 8222` in the configuration of NATS), or name them with --monitoring http://HOST:PORT. If they have `sync_interval: always` in `jetstream {{ }}`, use --allow-unsynced"
    );
    Ok(())
}

/// The servers behind these monitoring ports. Clients cannot ask whether a server syncs; its
/// monitoring port says so.
fn named_that_sync(
    monitoring: &[String],
    allows_unsynced: bool,
) -> anyhow::Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    for url in monitoring {
        let answer = fetch(url).with_context(|| format!("--monitoring {url}"))?;
        ensure!(
            syncs(&answer) || allows_unsynced,
            "{url}: the server acknowledges before it syncs, so a loss of power may lose \
             acknowledged messages; set `sync_interval: always` in its `jetstream {{ }}`, or use \
             --allow-unsynced"
        );
        ids.extend(id_of(&answer));
    }
    Ok(ids)
}

/// Those that say so on the port that NATS usually has for monitoring.
fn usual_that_sync(config: &ClusterConfig) -> impl Iterator<Item = String> {
    let answers = config.servers.iter().filter_map(|server| fetch(&usual_port(&server.url)?).ok());
    answers.filter(syncs).filter_map(|answer| id_of(&answer))
}

fn usual_port(url: &str) -> Option<String> {
    let host = Url::parse(url).ok()?.bracketed_host();
    (!host.is_empty()).then(|| format!("http://{host}:{MONITORING_PORT}"))
}

fn syncs(answer: &Value) -> bool {
    answer["config"]["sync_always"].as_bool() == Some(true)
}

fn id_of(answer: &Value) -> Option<String> {
    answer["server_id"].as_str().map(str::to_owned)
}

/// `/jsz` of a server's monitoring port.
fn fetch(url: &str) -> anyhow::Result<Value> {
    let wrong = |why: &str| anyhow!("{why}; write a URL such as http://127.0.0.1:8222");
    let base = web::http_url(url, MONITORING_PORT, "").map_err(|why| wrong(&why))?;
    let parts = Url::parse(&base)?;
    ensure!(parts.path.is_empty(), wrong("has a path"));
    let agent = web::agent(&parts, &web::ClientTls::default(), TIMEOUT)?;
    let mut answer = agent.get(format!("{base}/jsz")).call().context("cannot be reached")?;
    let is_good = answer.status().as_u16() == 200;
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let body = body.context("does not answer")?;
    let value = serde_json::from_slice(&body).ok().filter(|_| is_good);
    value.context("does not answer as the monitoring port of a NATS server does")
}

/// Major and minor.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(['.', '-']).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// With it, replicated streams sync once for each batch of appends and not for each message.
const VERSION_MIN: (u32, u32) = (2, 15);
/// The least that has a majority when one is lost.
const SERVERS_MIN: usize = 3;
/// Where NATS servers are monitored unless they are told otherwise.
const MONITORING_PORT: u16 = 8222;
const TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn info(version: &str, jetstream: bool) -> ServerInfo {
        ServerInfo { version: version.into(), jetstream, ..ServerInfo::default() }
    }

    #[test]
    fn old_servers_and_those_without_jetstream_are_refused() {
        for good in ["2.15.0", "2.15.3-RC.1", "3.0.0"] {
            check_server("nats://a", &info(good, true)).unwrap();
        }
        for bad in ["2.14.9", "1.99.0", "", "x.y"] {
            let error = check_server("nats://a", &info(bad, true)).unwrap_err().to_string();
            assert!(error.contains("must be 2.15 or newer"), "{error}");
        }
        let error = check_server("nats://a", &info("2.15.3", false)).unwrap_err().to_string();
        assert!(error.contains("has no JetStream"), "{error}");
    }

    #[test]
    fn what_is_not_verified_is_refused_unless_allowed() {
        demand_sync(3, 3, false).unwrap();
        demand_sync(3, 0, true).unwrap();
        let error = demand_sync(3, 1, false).unwrap_err().to_string();
        assert!(error.starts_with("could not verify that 2 of 3 NATS servers sync"), "{error}");
    }

    #[test]
    fn monitoring_ports_are_urls_and_guessed_by_host() {
        for url in ["127.0.0.1:8222", "http://", "http://a/b", "ftp://a:1"] {
            let error = named_that_sync(&[url.to_owned()], false).unwrap_err();
            assert!(format!("{error:#}").contains("write a URL such as"), "{error:#}");
        }
        assert_eq!(usual_port("tls://m1.example:4222").unwrap(), "http://m1.example:8222");
        assert_eq!(usual_port("nats://[::1]:4222").unwrap(), "http://[::1]:8222");
        assert_eq!(usual_port("nats://:4222"), None);
    }

    #[test]
    fn answers_of_the_monitoring_port_are_read() {
        use std::io::{BufRead as _, BufReader, Write as _};
        let ask = |answer: &'static str| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<_> =
                    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                stream.write_all(answer.as_bytes()).unwrap();
                head[0].clone()
            });
            let answer = fetch(&url);
            assert_eq!(server.join().unwrap(), "GET /jsz HTTP/1.1");
            answer
        };
        let good = "HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"config\":{\"sync_always\":true}}";
        assert!(syncs(&ask(good).unwrap()));
        for bad in ["HTTP/1.0 404 No\r\n\r\n{}", "HTTP/1.0 200 OK\r\n\r\n<html>"] {
            let error = format!("{:#}", ask(bad).unwrap_err());
            assert!(error.contains("does not answer as the monitoring port"), "{bad}: {error}");
        }
    }
}
