//! Where the streams and the bucket are led: not beside the active node, so that the loss of its
//! machine needs no election of NATS before another node can take over.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::engine::{Engine, EngineError};

/// How often the active node looks. One stream is moved at a time: appends to it wait meanwhile.
const PLACE_INTERVAL: Duration = Duration::from_secs(30);

/// How long after a takeover it looks first.
const PLACE_DELAY: Duration = Duration::from_secs(10);

/// Looks when it is time, on an active node. `place_at`: when that is next.
pub(super) fn place_leaders(is_active: bool, engine: &Engine, place_at: &mut Option<Instant>) {
    if !is_active {
        *place_at = None;
        return;
    }
    let now = Instant::now();
    if *place_at.get_or_insert(now + PLACE_DELAY) <= now {
        *place_at = Some(now + PLACE_INTERVAL);
        tokio::spawn(move_one_leader(engine.clone()));
    }
}

/// Moves the first stream that the server led which this node is connected to. Another stream, or
/// another try, is left to the next call.
async fn move_one_leader(engine: Engine) {
    let own = engine.client().server_info().server_name;
    let names = engine.names();
    // The lease first: a takeover begins with it.
    for stream in [names.bucket_stream(), names.stream(), names.blocks()] {
        let Ok(info) = engine.api(&format!("STREAM.INFO.{stream}"), Value::Null).await else {
            return;
        };
        let Some(to) = better_leader(&info["cluster"], &own) else { continue };
        let asked = json!({ "placement": { "preferred": to } });
        match engine.api(&format!("STREAM.LEADER.STEPDOWN.{stream}"), asked).await {
            Ok(_) => tracing::info!(stream, from = own, to, "stream leader moved"),
            Err(EngineError::Refused { description, .. }) => {
                tracing::debug!(stream, description, "stream leader not moved");
            }
            Err(error) => tracing::debug!(stream, %error, "stream leader not moved"),
        }
        return;
    }
}

/// A server that has all of the stream and could lead it in place of `own`, if `own` leads it.
fn better_leader(cluster: &Value, own: &str) -> Option<String> {
    if cluster["leader"].as_str() != Some(own) {
        return None;
    }
    let is_fit = |replica: &&Value| {
        replica["current"].as_bool() == Some(true)
            && replica["offline"].as_bool() != Some(true)
            && replica["lag"].as_u64().unwrap_or_default() == 0
    };
    let replicas = cluster["replicas"].as_array()?;
    replicas.iter().find(is_fit)?["name"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(name: &str, current: bool, offline: bool) -> Value {
        json!({ "name": name, "current": current, "offline": offline })
    }

    #[test]
    fn a_leader_moves_only_from_the_own_server_and_to_one_that_has_all() {
        let cluster = json!({
            "leader": "n1",
            "replicas": [
                replica("n2", false, false), replica("n3", true, true), replica("n4", true, false),
            ],
        });
        assert_eq!(better_leader(&cluster, "n1").as_deref(), Some("n4"));
        assert_eq!(better_leader(&cluster, "n2"), None);
        let alone = json!({ "leader": "n1", "replicas": [replica("n2", false, false)] });
        assert_eq!(better_leader(&alone, "n1"), None);
        assert_eq!(better_leader(&json!({ "leader": "n1" }), "n1"), None, "a single copy");
    }
}
