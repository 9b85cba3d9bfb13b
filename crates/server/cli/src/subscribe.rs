//! `quelea sub`: subscribes and prints messages.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::{ArgAction, Args};
use client::blocking::{Client, ClientError, Message};
use codec::{QoS, Reason, RetainHandling, SubscribeOptions};

use super::connection::{Connection, ConnectionArgs, ToolError, finish, parse_qos};
use super::format::Format;

/// The flags of `quelea sub`.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub struct SubArgs {
    /// Topic filter to subscribe to. May be repeated, or given in -L.
    #[arg(short, long, value_name = "FILTER")]
    pub topic: Vec<String>,
    /// Highest QoS of received messages.
    #[arg(short, long, default_value = "0", value_parser = parse_qos, value_name = "QOS")]
    pub qos: QoS,
    /// Print the topic in front of the payload. -F takes precedence.
    #[arg(short, long)]
    pub verbose: bool,
    /// No line break after a message.
    #[arg(short = 'N')]
    pub no_newline: bool,
    /// Print each message in this format. %t topic, %p payload, %q QoS, %r retain, %l length, %x %X
    /// hex. %j %J JSON, %U %I time, %m packet ID, %d dup. %A %C %D %E %F %R %S %P: properties.
    #[arg(short = 'F', long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Exit after this many messages.
    #[arg(short = 'C', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Exit after this many seconds, with exit code 27.
    #[arg(short = 'W', long, value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(value_name = "SECS")]
    pub wait: Option<u64>,
    /// Exit when the broker has answered the subscriptions.
    #[arg(short = 'E')]
    pub exit_after_subscribe: bool,
    /// Do not print retained messages.
    #[arg(short = 'R', conflicts_with = "retained_only")]
    pub no_retained: bool,
    /// Print only retained messages, and exit at the first other message.
    #[arg(long)]
    pub retained_only: bool,
    /// Clear each retained message that is received.
    #[arg(long)]
    pub remove_retained: bool,
    /// Do not print messages of topics that match. May be repeated.
    #[arg(short = 'T', long, value_name = "FILTER")]
    pub filter_out: Vec<String>,
    /// Unsubscribe from this filter first. May be repeated.
    #[arg(short = 'U', long, value_name = "FILTER")]
    pub unsubscribe: Vec<String>,
    /// Keep the retain flag as it was published (MQTT 5).
    #[arg(long)]
    pub retain_as_published: bool,
    /// When retained messages are sent: always, new or never (MQTT 5).
    #[arg(long, default_value = "always", value_parser = parse_retain_handling)]
    #[arg(value_name = "WHEN")]
    pub retain_handling: RetainHandling,
    /// Do not receive what this client publishes itself (MQTT 5).
    #[arg(long)]
    pub no_local: bool,
    /// Exit when the connection is lost, instead of connecting again.
    #[arg(long)]
    pub no_reconnect: bool,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Runs the command; the result is the exit code.
pub fn run(args: SubArgs) -> u8 {
    let is_quiet = args.connection.quiet;
    let result = Subscriber::new(args).and_then(|mut subscriber| subscriber.run());
    finish(result, is_quiet)
}

struct Subscriber {
    args: SubArgs,
    connection: Connection,
    filters: Vec<String>,
    format: Format,
    stop: Arc<AtomicBool>,
    deadline: Option<Instant>,
    left: Option<u64>,
}

/// What to do after a message.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

impl Subscriber {
    fn new(args: SubArgs) -> Result<Self, ToolError> {
        let connection = args.connection.lower()?;
        let mut filters = args.topic.clone();
        filters.extend(connection.topic.clone());
        let usage = |text: String| ToolError::Usage(text);
        if filters.is_empty() && args.unsubscribe.is_empty() {
            return Err(usage("a topic filter is needed: -t FILTER".into()));
        }
        for filter in filters.iter().chain(&args.unsubscribe).chain(&args.filter_out) {
            broker::names::parse_filter(filter, &topic::TopicLimits::default())
                .map_err(|error| usage(format!("'{filter}': {error}")))?;
        }
        let format = match &args.format {
            Some(format) => Format::parse(format).map_err(usage)?,
            None => Format::plain(args.verbose),
        };
        let deadline = args.wait.map(|secs| Instant::now() + Duration::from_secs(secs));
        let stop = Arc::new(AtomicBool::new(false));
        let left = args.count;
        Ok(Self { args, connection, filters, format, stop, deadline, left })
    }

    fn run(&mut self) -> Result<(), ToolError> {
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&self.stop))
                .map_err(|source| ToolError::Io { what: "cannot handle signals".into(), source })?;
        }
        let (mut client, _) = self.connection.open()?;
        self.subscribe(&mut client)?;
        let result = match self.args.exit_after_subscribe {
            true => Ok(()),
            false => self.receive(&mut client),
        };
        if matches!(result, Ok(()) | Err(ToolError::TimedOut)) {
            let properties = self.connection.properties.disconnect.as_properties();
            client
                .disconnect_with(Reason::NORMAL_DISCONNECTION, properties)
                .map_err(|source| self.connection.failed(source))?;
        }
        result
    }

    /// Fails when the broker refuses all of them; tells those it refuses otherwise.
    fn subscribe(&self, client: &mut Client) -> Result<(), ToolError> {
        let failed = |source| self.connection.failed(source);
        if !self.args.unsubscribe.is_empty() {
            let filters: Vec<&str> = self.args.unsubscribe.iter().map(String::as_str).collect();
            client.unsubscribe(&filters).map_err(failed)?;
        }
        if self.filters.is_empty() {
            return Ok(());
        }
        let options = SubscribeOptions {
            qos: self.args.qos,
            no_local: self.args.no_local,
            retain_as_published: self.args.retain_as_published,
            retain_handling: self.args.retain_handling,
        };
        let filters: Vec<(&str, SubscribeOptions)> =
            self.filters.iter().map(|filter| (filter.as_str(), options)).collect();
        let properties = self.connection.properties.subscribe.as_properties();
        let reasons = client.subscribe_with(&filters, properties).map_err(failed)?;
        let mut refused = None;
        for ((filter, _), reason) in filters.iter().zip(&reasons) {
            if reason.is_error() {
                let error = ToolError::refused(&format!("the subscription to '{filter}'"), *reason);
                if filters.len() == 1 {
                    return Err(error);
                }
                if !self.args.connection.quiet {
                    base::complain(&error);
                }
                refused = Some(*reason);
            } else {
                self.connection.debug(&format_args!("subscribed to '{filter}', QoS {}", reason.0));
            }
        }
        match refused {
            Some(reason) if reasons.iter().all(|reason| reason.is_error()) => {
                Err(ToolError::refused("every subscription", reason))
            }
            _ => Ok(()),
        }
    }

    fn receive(&mut self, client: &mut Client) -> Result<(), ToolError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let now = Instant::now();
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ToolError::TimedOut);
            }
            // A signal does not end the wait of the client, so it waits in slices.
            let slice = left.map_or(SIGNAL_SLICE, |left| left.min(SIGNAL_SLICE));
            match client.recv(Some(slice)) {
                Ok(None) => {}
                Ok(Some(message)) => {
                    if self.take(client, &message)? == Next::End {
                        return Ok(());
                    }
                }
                Err(error) if self.may_reconnect(&error) => self.reconnect(client, &error)?,
                Err(error) => return Err(self.connection.failed(error)),
            }
        }
    }

    fn take(&mut self, client: &mut Client, message: &Message) -> Result<Next, ToolError> {
        if self.args.retained_only && !message.retain {
            return Ok(Next::End);
        }
        let is_unwanted =
            self.args.filter_out.iter().any(|filter| topic::matches(filter, &message.topic));
        if is_unwanted || (self.args.no_retained && message.retain) {
            return Ok(Next::GoOn);
        }
        self.print(message)
            .map_err(|source| ToolError::Io { what: "cannot print".into(), source })?;
        if self.args.remove_retained && message.retain {
            let clear =
                Message::new(message.topic.clone(), Vec::new()).qos(QoS::AtLeastOnce).retain();
            let reason = client.publish(&clear).map_err(|source| self.connection.failed(source))?;
            if reason.is_error() {
                return Err(ToolError::refused("clearing a retained message", reason));
            }
        }
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        Ok(if self.left == Some(0) { Next::End } else { Next::GoOn })
    }

    fn print(&self, message: &Message) -> io::Result<()> {
        let mut out = io::stdout().lock();
        self.format.write(message, SystemTime::now(), &mut out)?;
        if !self.args.no_newline {
            out.write_all(b"\n")?;
        }
        out.flush()
    }

    /// A broker that ends the connection on purpose would do so again.
    fn may_reconnect(&self, error: &ClientError) -> bool {
        let is_lost = match error {
            ClientError::Closed | ClientError::Io(_) => true,
            ClientError::EndedByServer { reason, .. } => {
                matches!(*reason, Reason::SERVER_SHUTTING_DOWN | Reason::SERVER_BUSY)
            }
            _ => false,
        };
        is_lost && !self.args.no_reconnect
    }

    fn reconnect(&self, client: &mut Client, error: &ClientError) -> Result<(), ToolError> {
        if !self.args.connection.quiet {
            base::complain(&format_args!("{error}; connecting again"));
        }
        let mut pause = RECONNECT_PAUSE_MIN;
        loop {
            if !self.pause(pause)? {
                return Ok(());
            }
            match client.reconnect(&self.connection.endpoint, &self.connection.options) {
                Ok(connected) if connected.session_present => return Ok(()),
                Ok(_) => return self.subscribe(client),
                Err(error @ ClientError::Refused { .. }) => {
                    return Err(self.connection.failed(error));
                }
                Err(error) => self.connection.debug(&error),
            }
            pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
        }
    }

    /// False: it was told to stop meanwhile.
    fn pause(&self, pause: Duration) -> Result<bool, ToolError> {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(ToolError::TimedOut);
            }
            std::thread::sleep(SIGNAL_SLICE.min(until.saturating_duration_since(Instant::now())));
        }
        Ok(true)
    }
}

fn parse_retain_handling(text: &str) -> Result<RetainHandling, String> {
    match text {
        "always" | "0" => Ok(RetainHandling::Always),
        "new" | "1" => Ok(RetainHandling::IfNew),
        "never" | "2" => Ok(RetainHandling::Never),
        _ => Err("must be always, new or never".into()),
    }
}

/// How long a signal may wait to be seen.
const SIGNAL_SLICE: Duration = Duration::from_millis(200);
const RECONNECT_PAUSE_MIN: Duration = Duration::from_secs(1);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  quelea sub -t 'home/#' -v                    topics and payloads, until interrupted
  quelea sub -t home/lamp -C 1                 one message
  quelea sub -t 'home/#' -F '%I %t %J'         with time, as JSON
  quelea sub -t '$share/workers/jobs' -q 1     a share of the messages
  quelea sub -t 'home/#' --retained-only -W 2  retained messages
  quelea sub -i me -c -q 1 -t orders           in a session that survives

Exit codes: 0 done; 1 failed; 2 wrong usage; 27 timeout (-W); when the broker refuses the
connection, its reason code.";
