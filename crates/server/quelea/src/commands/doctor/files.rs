//! The data directory, its disk, and the files that the configuration names.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Finding;
use config::{Config, DurabilityLevel, Machine, Method};

/// The process of the broker on a data directory, if one runs.
pub(super) fn running_broker(data_dir: &Path) -> Option<i32> {
    let stream = UnixStream::connect(data_dir.join(data::control::SOCKET)).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    // Who says nothing and goes would be logged as a backup that failed.
    data::control::greet(&stream);
    Some(peer.pid.as_raw_nonzero().get())
}

pub(super) fn permissions(config: &Config, found: &mut Vec<Finding>) {
    let area = "permissions";
    let before = found.len();
    let secrets = secrets(config);
    for path in &secrets {
        judge(path, 0o044, "other users can read it", "chmod 600", found);
    }
    let rules = [&config.access.acl_file, &config.access.policy_file, &config.auth.ban_file];
    let rules: Vec<PathBuf> = rules.into_iter().flatten().cloned().collect();
    for path in rules.iter().chain(&secrets) {
        judge(path, 0o022, "other users can change it", "chmod go-w", found);
    }
    let data_dir = &config.server.data_dir;
    if config.durability.has_journal() {
        judge(data_dir, 0o077, "other users can look into it", "chmod 700", found);
        owner(data_dir, found);
    }
    if found.len() == before {
        found.push(Finding::ok(area, "secrets and the data directory belong to one user only"));
    }
}

/// Files that nobody else may read.
fn secrets(config: &Config) -> Vec<PathBuf> {
    let keys = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let keys = keys.chain(config.http_tls_by_key().into_iter().map(|(_, tls)| tls));
    let keys = keys.map(|tls| tls.key.clone());
    let shared = config.authentication.iter().filter_map(|provider| match &provider.method {
        Method::Jwt(own) => own.secret_file.clone(),
        Method::Http(_) | Method::Certificate { .. } | Method::Registry(_) => None,
    });
    let api = config
        .api
        .iter()
        .flat_map(|api| api.password_file.iter().cloned().chain([api.token_file.clone()]));
    keys.chain(shared).chain(config.auth.password_file.clone()).chain(api).collect()
}

fn judge(path: &Path, bits: u32, what: &str, command: &str, found: &mut Vec<Finding>) {
    if fs::metadata(path).is_ok_and(|file| others_may(&file, bits)) {
        let path = path.display();
        let fix = format!("{command} {path}");
        found.push(Finding::warn("permissions", format!("{path}: {what}"), fix));
    }
}

/// Root's group may read what is root's, as Debian has it for keys.
pub(super) fn others_may(file: &Metadata, bits: u32) -> bool {
    let group_is_own = file.gid() == 0 && file.uid() == 0;
    let bits = if group_is_own { bits & 0o007 } else { bits };
    file.permissions().mode() & bits != 0
}

/// A start as root leaves files that the user of the service cannot open.
fn owner(data_dir: &Path, found: &mut Vec<Finding>) {
    let Ok(directory) = fs::metadata(data_dir) else { return };
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    let is_foreign =
        |path: &Path| fs::symlink_metadata(path).is_ok_and(|file| file.uid() != directory.uid());
    let foreign = entries.map(|entry| entry.path()).find(|path| is_foreign(path));
    if let Some(path) = foreign {
        let text = format!("{}: belongs to another user than the data directory", path.display());
        let shown = data_dir.display();
        let fix = format!("chown -R --reference={shown} {shown}");
        found.push(Finding::fail("permissions", text, fix));
    }
}

/// Free space, kind and speed of the disk below the data directory.
pub(super) fn disk(config: &Config, machine: &Machine, found: &mut Vec<Finding>) {
    if !config.durability.has_journal() {
        found.push(Finding::ok("disk", "nothing is stored (durability.level = \"memory\")"));
        return;
    }
    let data_dir = &config.server.data_dir;
    space(config, machine, found);
    if !data_dir.is_dir() {
        let text = format!("{}: not there yet, so its speed is not known", data_dir.display());
        found.push(Finding::ok("disk", text));
        return;
    }
    if rustix::fs::statfs(data_dir).is_ok_and(|it| TEMPORARY.contains(&(it.f_type as u64))) {
        let text = format!("{}: in memory (tmpfs), so a restart loses it", data_dir.display());
        found.push(Finding::warn("disk", text, "set server.data_dir to a directory on a disk"));
    }
    speed(data_dir, config.durability.level, found);
}

fn space(config: &Config, machine: &Machine, found: &mut Vec<Finding>) {
    let data_dir = &config.server.data_dir;
    let Some(bytes) = (machine.disk_bytes)(data_dir) else { return };
    let shown = |bytes: u64| format!("{} MiB", bytes >> 20);
    let shards = u64::from(config.server.shards);
    let segment = config.durability.journal_settings(config.server.shards);
    let Ok(segment_bytes) = segment.map(|settings| u64::from(settings.segment_bytes)) else {
        return;
    };
    let needed = SEGMENTS_MIN * shards * segment_bytes;
    let limit = config.durability.log_bytes_max;
    found.push(if bytes < needed {
        let text = format!(
            "{}: {} for {shards} shards, which need {}",
            data_dir.display(),
            shown(bytes),
            shown(needed)
        );
        Finding::fail("disk", text, "free space, or lower server.shards and packet_bytes_max")
    } else if limit > bytes {
        let text = format!(
            "durability.log_bytes_max is {}, and there are {}: the disk is full before the limit \
            acts",
            shown(limit),
            shown(bytes)
        );
        Finding::warn("disk", text, "omit durability.log_bytes_max")
    } else {
        Finding::ok("disk", format!("{} for logs", shown(bytes)))
    });
}

fn speed(data_dir: &Path, level: DurabilityLevel, found: &mut Vec<Finding>) {
    match sync_time(data_dir) {
        Ok(median) => {
            let text = format!("a sync takes {:.1} ms (median)", median.as_secs_f64() * 1000.0);
            let waits = level == DurabilityLevel::Fsync;
            found.push(match median > SYNC_MAX && waits {
                true => Finding::warn(
                    "disk",
                    format!("{text}; at level fsync each acknowledgement waits for one"),
                    "use a disk with power-loss protection, or durability.level = \"disk\"",
                ),
                false => Finding::ok("disk", text),
            });
        }
        Err(error) => {
            let text = format!("{}: cannot write: {error}", data_dir.display());
            let fix = "run as the user of the broker, or correct owner and mode";
            found.push(Finding::fail("disk", text, fix));
        }
    }
}

/// The median of some syncs of a scratch file, each behind a small write.
fn sync_time(directory: &Path) -> io::Result<Duration> {
    let path = directory.join(format!(".doctor-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path)?;
    let measured = measure(file);
    fs::remove_file(&path)?;
    measured
}

fn measure(mut file: File) -> io::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        file.write_all(&[0; 4096])?;
        let began = Instant::now();
        file.sync_data()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}

const SYNCS: usize = 21;

/// Disks with power-loss protection are below a tenth of that, hard disks above.
const SYNC_MAX: Duration = Duration::from_millis(10);

/// A log needs one to write, one to copy to, and one to spare.
const SEGMENTS_MIN: u64 = 3;

/// tmpfs, ramfs.
const TEMPORARY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use config::{SourceFile, Sources, load};

    fn config_in(directory: &Path, text: &str) -> Config {
        let file = SourceFile { path: directory.join("q.toml"), text: text.into() };
        let sources = Sources { file: Some(file), ..Sources::default() };
        load(&sources, &Machine::UNKNOWN).unwrap().config
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn open_files_are_named_with_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let data = path.join("data");
        fs::create_dir(&data).unwrap();
        fs::write(path.join("passwords"), "").unwrap();
        let text = "auth.password_file = \"passwords\"\nserver.data_dir = \"data\"";
        let config = config_in(path, text);
        let look = |passwords: u32, own: u32| {
            set_mode(&path.join("passwords"), passwords);
            set_mode(&data, own);
            let mut found = Vec::new();
            permissions(&config, &mut found);
            found
        };
        assert_eq!(look(0o600, 0o700)[0].level, Level::Ok);
        let found = look(0o604, 0o700);
        let fix = format!("chmod 600 {}", path.join("passwords").display());
        assert_eq!((found[0].level, found[0].fix.as_ref()), (Level::Warn, Some(&fix)));
        assert!(look(0o602, 0o700)[0].text.contains("change"));
        assert!(look(0o600, 0o705)[0].fix.as_ref().unwrap().starts_with("chmod 700"));
    }

    #[test]
    fn a_look_at_the_disk_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::create_dir(path.join("data")).unwrap();
        let mut found = Vec::new();
        let config = config_in(path, "server.data_dir = \"data\"");
        disk(&config, &Machine::UNKNOWN, &mut found);
        assert!(found.iter().any(|found| found.text.contains("a sync takes")), "{found:?}");
        assert_eq!(fs::read_dir(path.join("data")).unwrap().count(), 0);
        assert!(sync_time(&path.join("missing")).is_err());
    }

    #[test]
    fn space_is_compared_with_what_shards_need() {
        let directory = tempfile::tempdir().unwrap();
        let level = |bytes: fn(&Path) -> Option<u64>, text: &str| {
            let machine = Machine { disk_bytes: bytes, ..Machine::UNKNOWN };
            let mut found = Vec::new();
            space(&config_in(directory.path(), text), &machine, &mut found);
            found.first().map(|found| found.level)
        };
        assert_eq!(level(|_| Some(1 << 20), ""), Some(Level::Fail));
        assert_eq!(level(|_| Some(1 << 40), ""), Some(Level::Ok));
        let limit = "durability.log_bytes_max = \"2000GiB\"";
        assert_eq!(level(|_| Some(1 << 40), limit), Some(Level::Warn));
        assert_eq!(level(|_| None, ""), None);
    }
}
