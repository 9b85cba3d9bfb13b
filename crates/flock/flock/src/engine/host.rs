//! What the machine is, and what a process tree spends on it: read from `/proc`, or from a metrics
//! page.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use web::ureq;

use super::surroundings;
use flock_measure::{HostLoad, HostSample, MachineInfo};

/// This machine, as far as it bears on the figures.
pub fn machine() -> MachineInfo {
    let limit = getrlimit(Resource::Nofile);
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'))
        .map_or("unknown", |(_, name)| name.trim());
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let os = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
    MachineInfo {
        hostname: sysctl("kernel.hostname").unwrap_or_default(),
        cpu: cpu.to_owned(),
        // Of the machine, whichever of them this process may use.
        cores: surroundings::cores_online().unwrap_or(cores() as u32),
        memory_bytes: memory_kib("MemTotal") * 1024,
        kernel: sysctl("kernel.osrelease").unwrap_or_default(),
        os: os.trim_matches('"').to_owned(),
        descriptors_soft: limit.current.unwrap_or(u64::MAX),
        descriptors_hard: limit.maximum.unwrap_or(u64::MAX),
        sysctls: SYSCTLS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), sysctl(name)?)))
            .collect::<BTreeMap<_, _>>(),
        surroundings: surroundings::here(),
    }
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Bytes that can still be had without swapping.
pub fn memory_available_bytes() -> u64 {
    memory_kib("MemAvailable") * 1024
}

fn memory_kib(field: &str) -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// A kernel setting by its dotted name.
pub fn sysctl(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Raises the soft limit of open files to the hard one, and gives that.
pub fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(_) => limit.current.unwrap_or(u64::MAX),
    }
}

/// Makes room for so many open files at once.
///
/// The kernel doubles the table of open files whenever it is full, and lets every thread that opens
/// a file wait meanwhile, 10 to 20 ms each time. In a ramp of connections that would be connect
/// latency of nobody's but our own.
pub fn reserve_descriptors(count: u64) -> io::Result<()> {
    let any = fs::File::open("/dev/null")?;
    let highest = i32::try_from(count).unwrap_or(i32::MAX);
    // Closed at once: the table stays as large as it got.
    drop(rustix::io::fcntl_dupfd_cloexec(&any, highest)?);
    Ok(())
}

/// Watches a process and all its descendants, or a page of metrics.
#[derive(Debug)]
pub struct Sampler {
    source: Source,
    samples: Vec<HostSample>,
    /// CPU of processes watched before, so that the sum never goes back.
    before_secs: f64,
    tasks: Tasks,
    /// A descendant that is not counted: the broker that the lab started.
    except: Option<u32>,
    /// How the process was found, in words.
    found: &'static str,
}

#[derive(Debug)]
enum Source {
    Tree(u32),
    /// A page in the Prometheus format.
    Page {
        agent: ureq::Agent,
        url: String,
    },
}

impl Sampler {
    pub fn of_process(pid: u32) -> Self {
        Self::of(Source::Tree(pid))
    }

    /// `http://host:port/path` or `https://...`, read for `process_cpu_seconds_total` and
    /// `process_resident_memory_bytes`.
    pub fn of_page(url: &str) -> Result<Self, String> {
        let url = web::http_url(url, 80, "/metrics")?;
        let parts = net::Url::parse(&url).map_err(|error| error.to_string())?;
        let agent = web::agent(&parts, &web::ClientTls::default(), PAGE_TIMEOUT)
            .map_err(|error| error.to_string())?;
        Ok(Self::of(Source::Page { agent, url }))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            samples: Vec::new(),
            before_secs: 0.0,
            tasks: Tasks::default(),
            except: None,
            found: "",
        }
    }

    /// Says so where it says what was watched.
    pub fn found_by_its_socket(self) -> Self {
        Self { found: ", found by its socket", ..self }
    }

    /// The process to watch from now on (a broker that was restarted).
    pub fn follow(&mut self, pid: u32) {
        if matches!(self.source, Source::Tree(watched) if watched == pid) {
            return;
        }
        if let Some(last) = self.samples.last() {
            self.before_secs = last.cpu_secs.unwrap_or(0.0);
        }
        self.tasks = Tasks { wait_ns: self.tasks.wait_ns, ..Tasks::default() };
        self.source = Source::Tree(pid);
    }

    /// Whether there is something to be read. A page is asked for.
    pub fn is_there(&self) -> bool {
        match &self.source {
            Source::Tree(_) => true,
            Source::Page { agent, url } => sample_page(agent, url).is_ok(),
        }
    }

    /// Takes a sample. A process that is gone gives none.
    pub fn sample(&mut self, at_secs: f64) -> Option<HostSample> {
        let mut sample = match &self.source {
            Source::Tree(pid) => sample_tree(*pid, self.except, &mut self.tasks)?,
            Source::Page { agent, url } => sample_page(agent, url).ok()?,
        };
        sample.at_secs = at_secs;
        sample.cpu_secs = sample.cpu_secs.map(|secs| secs + self.before_secs);
        // Samples are also taken at the edges of stages, close to others. Over a short while the
        // steps of the clock make any figure.
        let is_before = |known: &&HostSample| at_secs - known.at_secs >= SPAN_SECS_MIN;
        if let Some(before) = self.samples.iter().rev().find(is_before) {
            let span_secs = at_secs - before.at_secs;
            let spent = sample.cpu_secs.zip(before.cpu_secs).map(|(now, then)| now - then);
            sample.cpu_percent = spent.map(|spent| spent.max(0.0) / span_secs * 100.0);
        }
        self.samples.push(sample);
        Some(sample)
    }

    /// The latest sample.
    pub fn last(&self) -> Option<&HostSample> {
        self.samples.last()
    }

    /// Leaves a descendant out, and what was spent by those that ended.
    pub fn leave_out(&mut self, pid: u32) {
        self.except = Some(pid);
    }

    /// How long the process's threads have waited for a core so far, where that is known.
    pub fn wait_secs(&self) -> Option<f64> {
        self.tasks.is_fine.then_some(self.tasks.wait_ns as f64 / 1e9)
    }

    /// Whether the process is one of this machine.
    pub fn is_local(&self) -> bool {
        matches!(self.source, Source::Tree(_))
    }

    /// The whole account; averages and slope are over `from_secs..=to_secs`.
    pub fn load(&self, from_secs: f64, to_secs: f64) -> HostLoad {
        let within: Vec<&HostSample> = self
            .samples
            .iter()
            .filter(|sample| (from_secs..=to_secs).contains(&sample.at_secs))
            .collect();
        let memory: Vec<f64> =
            within.iter().filter_map(|s| s.memory_bytes).map(|bytes| bytes as f64).collect();
        let is_cpu_known = self.samples.iter().any(|sample| sample.cpu_secs.is_some());
        HostLoad {
            cpu_percent_average: cpu_percent_between(within.first(), within.last()),
            cpu_percent_max: within.iter().filter_map(|s| s.cpu_percent).fold(0.0, f64::max),
            cpu_resolution_us: match (is_cpu_known, self.tasks.is_fine) {
                (false, _) => 0.0,
                (true, true) => SCHEDULER_TICK_US,
                (true, false) => 1e6 / TICKS_PER_SEC,
            },
            memory_bytes_average: memory.iter().sum::<f64>() / memory.len().max(1) as f64,
            memory_bytes_max: self.samples.iter().filter_map(|s| s.memory_bytes).max().unwrap_or(0),
            memory_slope_bytes_per_sec: slope(&within),
            memory_slope_late_bytes_per_sec: slope(&within[within.len() / 2..]),
            memory_slope_secs: within
                .first()
                .zip(within.last())
                .map_or(0.0, |(first, last)| last.at_secs - first.at_secs),
            source: match &self.source {
                Source::Tree(pid) => format!("pid {pid}{}", self.found),
                Source::Page { url, .. } => url.clone(),
            },
            samples: self.samples.clone(),
            ..HostLoad::default()
        }
    }
}

/// All that was spent between two samples, idle seconds included; 0 where they are too close to
/// tell.
fn cpu_percent_between(first: Option<&&HostSample>, last: Option<&&HostSample>) -> f64 {
    let (Some(first), Some(last)) = (first, last) else { return 0.0 };
    let span_secs = last.at_secs - first.at_secs;
    if span_secs < SPAN_SECS_MIN {
        return last.cpu_percent.unwrap_or(0.0);
    }
    let spent = last.cpu_secs.zip(first.cpu_secs).map_or(0.0, |(last, first)| last - first);
    spent.max(0.0) / span_secs * 100.0
}

/// Least squares over time.
fn slope(samples: &[&HostSample]) -> f64 {
    let points: Vec<(f64, f64)> =
        samples.iter().filter_map(|s| Some((s.at_secs, s.memory_bytes? as f64))).collect();
    let n = points.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let at = points.iter().map(|(at, _)| at).sum::<f64>() / n;
    let memory = points.iter().map(|(_, memory)| memory).sum::<f64>() / n;
    let (mut above, mut below) = (0.0, 0.0);
    for (point_at, point_memory) in points {
        above += (point_at - at) * (point_memory - memory);
        below += (point_at - at).powi(2);
    }
    if below > 0.0 { above / below } else { 0.0 }
}

/// What the scheduler says of each thread: finer than the ticks of a process, but gone with the
/// thread.
#[derive(Debug, Default)]
struct Tasks {
    /// By process and thread: nanoseconds on a core, and ready without one. At most
    /// [`PROCESSES_MAX`]; the rest is counted in ticks.
    known: HashMap<(u32, u32), (u64, u64)>,
    /// On a core, of threads that ended.
    gone_ns: u64,
    /// All that was waited for so far, also by threads that ended.
    wait_ns: u64,
    is_fine: bool,
}

impl Tasks {
    /// Nanoseconds on a core of all threads of these processes, now and before.
    fn update(&mut self, pids: &[u32]) -> u64 {
        let mut now = HashMap::new();
        for pid in pids {
            let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for thread in threads.flatten().take(PROCESSES_MAX) {
                let tid = thread.file_name().to_string_lossy().parse::<u32>();
                let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
                let mut numbers = text.split_whitespace().map(str::parse::<u64>);
                if let (Ok(tid), Some(Ok(ran)), Some(Ok(waited))) =
                    (tid, numbers.next(), numbers.next())
                    && now.len() < PROCESSES_MAX
                {
                    now.insert((*pid, tid), (ran, waited));
                }
            }
        }
        for (key, (ran, _)) in &self.known {
            // What a process spent that ended is counted with who waited for it.
            if !now.contains_key(key) && pids.contains(&key.0) {
                self.gone_ns += ran;
            }
        }
        for (key, (_, waited)) in &now {
            let before = self.known.get(key).map_or(0, |(_, waited)| *waited);
            self.wait_ns += waited.saturating_sub(before);
        }
        self.known = now;
        let ran: u64 = self.known.values().map(|(ran, _)| ran).sum();
        self.is_fine = ran > 0;
        ran + self.gone_ns
    }
}

fn sample_tree(root: u32, except: Option<u32>, tasks: &mut Tasks) -> Option<HostSample> {
    let first = sample_one(root)?;
    let (mut total, mut coarse_secs, mut children_secs) =
        (first.sample, first.own_secs, first.children_secs);
    let mut pids = vec![root];
    let mut pending = children(root);
    // Bounded: a tree of processes is never deeper than this many members.
    for _ in 0..PROCESSES_MAX {
        let Some(pid) = pending.pop() else { break };
        if except == Some(pid) {
            continue;
        }
        pending.extend(children(pid));
        if let Some(one) = sample_one(pid) {
            pids.push(pid);
            coarse_secs += one.own_secs;
            children_secs += one.children_secs;
            let memory = one.sample.memory_bytes.unwrap_or(0);
            total.memory_bytes = Some(total.memory_bytes.unwrap_or(0) + memory);
            total.threads += one.sample.threads;
            total.descriptors += one.sample.descriptors;
        }
    }
    // Threads that came and went between two samples are in the ticks alone.
    let fine_secs = tasks.update(&pids) as f64 / 1e9;
    let ended_secs = if except.is_some() { 0.0 } else { children_secs };
    total.cpu_secs = Some(fine_secs.max(coarse_secs) + ended_secs);
    Some(total)
}

pub(super) fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}

/// One process, and its CPU in ticks.
struct One {
    sample: HostSample,
    own_secs: f64,
    /// Of children that it waited for.
    children_secs: f64,
}

fn sample_one(pid: u32) -> Option<One> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets and may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let ticks = |at: usize| number(at).map(|ticks| ticks as f64 / TICKS_PER_SEC);
    if fields.first() == Some(&"Z") {
        return None;
    }
    let sample = HostSample {
        memory_bytes: resident_bytes(pid),
        threads: number(17)? as u32,
        descriptors: open_files(pid).unwrap_or(0),
        ..HostSample::default()
    };
    Some(One { sample, own_secs: ticks(11)? + ticks(12)?, children_secs: ticks(13)? + ticks(14)? })
}

/// Since Linux 6.2 the size of the directory. A list of 2,000 entries takes 2 ms, in which a thread
/// of the load or of the broker may wait.
fn open_files(pid: u32) -> Option<u64> {
    let directory = format!("/proc/{pid}/fd");
    match fs::metadata(&directory).ok()?.len() {
        0 => Some(fs::read_dir(directory).ok()?.count() as u64),
        count => Some(count),
    }
}

fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn sample_page(agent: &ureq::Agent, url: &str) -> Result<HostSample, ureq::Error> {
    let mut answer = agent.get(url).call()?;
    // What a server says instead of a page has no figures.
    if answer.status() != 200 {
        return Err(ureq::Error::StatusCode(answer.status().as_u16()));
    }
    let text = answer.body_mut().with_config().limit(PAGE_BYTES_MAX).read_to_string()?;
    let value = |name: &str| {
        text.lines()
            .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
            .and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    Ok(HostSample {
        cpu_secs: value("process_cpu_seconds_total"),
        memory_bytes: value("process_resident_memory_bytes").map(|bytes| bytes as u64),
        descriptors: value("process_open_fds").unwrap_or(0.0) as u64,
        ..HostSample::default()
    })
}

/// USER_HZ, which is 100 on every Linux that MQTT brokers run on.
const TICKS_PER_SEC: f64 = 100.0;
const PROCESSES_MAX: usize = 10_000;
/// A thread that runs is brought up to date at the scheduler's tick, which comes 250 times a second
/// on the usual kernels. One that sleeps is exact.
const SCHEDULER_TICK_US: f64 = 4_000.0;
/// The shortest time over which a share of CPU is told, just under the second between samples.
const SPAN_SECS_MIN: f64 = 0.9;
const PAGE_TIMEOUT: Duration = Duration::from_millis(500);
const PAGE_BYTES_MAX: u64 = 4 * 1024 * 1024;
const SYSCTLS: [&str; 12] = [
    "fs.file-max",
    "fs.nr_open",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};

    use super::*;

    #[test]
    fn our_own_process_can_be_watched() {
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let mut sampler = Sampler::of_process(std::process::id());
        let sample = sampler.sample(1.0).unwrap();
        assert!(sample.memory_bytes > Some(0) && sample.threads > 0);
        // Other tests of this process open files meanwhile.
        assert!((files.len() as u64..10_000).contains(&sample.descriptors), "{sample:?}");
        assert!(machine().memory_bytes > 0);
    }

    #[test]
    fn a_process_that_is_gone_gives_no_sample() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let mut sampler = Sampler::of_process(child.id());
        child.wait().unwrap();
        assert_eq!(sampler.sample(1.0), None);
    }

    #[test]
    fn the_cpu_of_a_broker_that_was_restarted_is_added_up() {
        let mut shells = ["sh", "sh"].map(|program| {
            let mut command = std::process::Command::new(program);
            command.stdin(std::process::Stdio::piped()).spawn().unwrap()
        });
        // Our own process has used more CPU than a shell that waits.
        let mut sampler = Sampler::of_process(std::process::id());
        let first = sampler.sample(1.0).unwrap().cpu_secs;
        for (at, shell) in shells.iter().enumerate() {
            sampler.follow(shell.id());
            let then = sampler.sample(2.0 + at as f64).unwrap().cpu_secs;
            assert!(then >= first, "{then:?} after {first:?}");
        }
        for shell in &mut shells {
            shell.kill().unwrap();
            shell.wait().unwrap();
        }
    }

    /// A page that answers one request with this, and who asks it.
    fn page(answer: &'static str) -> (Sampler, std::thread::JoinHandle<()>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // All of the request: what is left unread when a socket is closed resets it.
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let _ = lines.map_while(Result::ok).find(String::is_empty);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        (Sampler::of_page(&format!("http://{address}/metrics")).unwrap(), server)
    }

    #[test]
    fn what_a_page_does_not_have_is_unknown_and_not_nought() {
        let (mut sampler, server) = page("HTTP/1.0 200 OK\r\n\r\nprocess_open_fds 7\n");
        let sample = sampler.sample(1.0).unwrap();
        server.join().unwrap();
        assert_eq!((sample.cpu_secs, sample.memory_bytes, sample.descriptors), (None, None, 7));
        assert_eq!(sampler.load(0.0, 2.0).cpu_resolution_us, 0.0);
    }

    #[test]
    fn a_page_that_is_not_there_is_told_from_one_without_figures() {
        let (good, bad) = ("HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.0 404 Not Found\r\n\r\n");
        for (answer, is_there) in [(good, true), (bad, false)] {
            let (sampler, server) = page(answer);
            assert_eq!(sampler.is_there(), is_there, "{answer}");
            server.join().unwrap();
        }
    }

    #[test]
    fn cpu_of_less_than_a_tick_is_seen_and_that_of_threads_that_ended_is_kept() {
        let pid = std::process::id();
        let mut tasks = Tasks::default();
        let (ready, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        let before = tasks.update(&[pid]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sum: u64 = (0..100_000_u64).map(std::hint::black_box).sum();
                std::hint::black_box(sum);
                ready.wait();
                go.wait();
            });
            ready.wait();
            assert!(tasks.update(&[pid]) > before);
            go.wait();
        });
        let with_thread = tasks.known.len();
        let held = tasks.known.values().map(|(ran, _)| ran).sum::<u64>();
        tasks.known.insert((pid, u32::MAX), (5_000_000, 0));
        assert!(tasks.update(&[pid]) >= held + 5_000_000, "{with_thread} threads");
    }

    #[test]
    fn the_broker_that_the_lab_started_is_not_the_lab() {
        let pids = |except| {
            let mut tasks = Tasks::default();
            sample_tree(std::process::id(), except, &mut tasks).unwrap();
            tasks.known.keys().map(|(pid, _)| *pid).collect::<std::collections::HashSet<_>>()
        };
        let mut other = std::process::Command::new("sh");
        let mut other = other.stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(pids(None).contains(&other.id()));
        assert!(!pids(Some(other.id())).contains(&other.id()));
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn samples_close_to_each_other_tell_no_share_of_cpu() {
        let mut sampler = Sampler::of_process(std::process::id());
        for at in [1.0, 1.001, 1.002] {
            assert_eq!(sampler.sample(at).unwrap().cpu_percent, None);
        }
    }

    #[test]
    fn idle_seconds_are_part_of_the_average() {
        let mut sampler = Sampler::of_process(1);
        sampler.samples = (0..=10)
            .map(|second| HostSample {
                at_secs: f64::from(second),
                // Busy in the first two seconds, idle after that.
                cpu_secs: Some(f64::from(second.min(2))),
                cpu_percent: Some(if (1..=2).contains(&second) { 100.0 } else { 0.0 }),
                ..HostSample::default()
            })
            .collect();
        let average = sampler.load(0.0, 10.0).cpu_percent_average;
        assert!((average - 20.0).abs() < 1e-9, "{average}");
    }

    #[test]
    fn the_slope_of_the_second_half_does_not_see_what_warmed_up() {
        let mut sampler = Sampler::of_process(1);
        sampler.samples = (0..100)
            .map(|second| HostSample {
                at_secs: f64::from(second),
                memory_bytes: Some(1_000 + 7 * second.min(50) as u64),
                ..HostSample::default()
            })
            .collect();
        let load = sampler.load(10.0, 90.0);
        assert_eq!(load.memory_slope_secs, 80.0);
        assert!((2.0..7.0).contains(&load.memory_slope_bytes_per_sec));
        assert!(load.memory_slope_late_bytes_per_sec.abs() < 1e-9);
    }

    #[test]
    fn the_slope_of_a_line_is_its_slope() {
        let samples: Vec<HostSample> = (0..10)
            .map(|i| HostSample {
                at_secs: f64::from(i),
                memory_bytes: Some(1_000 + 7 * i as u64),
                ..HostSample::default()
            })
            .collect();
        assert!((slope(&samples.iter().collect::<Vec<_>>()) - 7.0).abs() < 1e-9);
    }
}
