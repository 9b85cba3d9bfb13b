//! Agents by the name that stands for all of them.

use std::io;
use std::net::ToSocketAddrs as _;

use super::pool::AgentError;

/// Replaces each `dns://NAME:PORT` by all addresses that the name stands for, as a headless service
/// of Kubernetes has them; others stay as they are.
pub fn discover(agents: &[String]) -> Result<Vec<String>, AgentError> {
    let mut all: Vec<String> = Vec::new();
    for agent in agents {
        let Some(name) = agent.strip_prefix("dns://") else {
            all.push(agent.clone());
            continue;
        };
        let unknown = |source| AgentError::Unknown { name: name.to_owned(), source };
        let has_port = name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let asked = if has_port { name.to_owned() } else { format!("{name}:{PORT}") };
        let mut found: Vec<String> =
            asked.to_socket_addrs().map_err(unknown)?.map(|address| address.to_string()).collect();
        // Names are answered in any order; a run's clients go to the same agents each time.
        found.sort_unstable();
        found.dedup();
        if found.is_empty() {
            return Err(unknown(io::Error::other("the name resolves to no address")));
        }
        all.extend(found.into_iter().filter(|address| !all.contains(address)).collect::<Vec<_>>());
    }
    Ok(all)
}

/// Where agents listen by default.
const PORT: u16 = 3881;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_all_its_addresses() {
        let given = |text: &str| discover(&[text.to_owned()]);
        assert_eq!(given("h:1").unwrap(), ["h:1"]);
        assert_eq!(given("dns://127.0.0.1:77").unwrap(), ["127.0.0.1:77"]);
        assert_eq!(given("dns://127.0.0.1").unwrap(), ["127.0.0.1:3881"]);
        let local = given("dns://localhost:5").unwrap();
        assert!(!local.is_empty() && local.iter().all(|address| address.ends_with(":5")));
        let twice = discover(&["dns://127.0.0.1:5".to_owned(), "dns://127.0.0.1:5".to_owned()]);
        assert_eq!(twice.unwrap(), ["127.0.0.1:5"]);
        let error = given("dns://no such name:5").unwrap_err().to_string();
        assert!(error.contains("no such name"), "{error}");
    }
}
