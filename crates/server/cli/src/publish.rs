//! `quelea pub`: publishes messages.

use std::io::{self, BufRead, Read};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::{ArgAction, ArgGroup, Args};
use client::blocking::{Client, Message};
use codec::{QoS, Reason};

use super::connection::{Connection, ConnectionArgs, ToolError, finish, parse_qos};

/// The flags of `quelea pub`.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
#[command(group = ArgGroup::new("source").required(true).args(SOURCES))]
pub struct PubArgs {
    /// Topic to publish to. May be given in -L instead.
    #[arg(short, long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// The message.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub message: Option<String>,
    /// Publish the content of this file.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Publish each line of standard input as a message.
    #[arg(short = 'l', long)]
    pub stdin_line: bool,
    /// Publish all of standard input as one message.
    #[arg(short = 's', long)]
    pub stdin_file: bool,
    /// Publish an empty message. With -r it clears the retained message.
    #[arg(short = 'n', long)]
    pub null_message: bool,
    /// QoS of the messages.
    #[arg(short, long, default_value = "0", value_parser = parse_qos, value_name = "QOS")]
    pub qos: QoS,
    /// The broker retains the message for later subscribers.
    #[arg(short, long)]
    pub retain: bool,
    /// The most unacknowledged messages of QoS 1 and 2.
    #[arg(short = 'M', long, default_value_t = IN_FLIGHT_MAX, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub max_inflight: u16,
    /// How many times each message is published.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(value_name = "N")]
    pub repeat: u64,
    /// Seconds between repetitions; fractions are allowed.
    #[arg(long, default_value = "0", value_parser = parse_secs, value_name = "SECS")]
    pub repeat_delay: Duration,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Runs the command; the result is the exit code.
pub fn run(args: PubArgs) -> u8 {
    let is_quiet = args.connection.quiet;
    finish(publish(&args), is_quiet)
}

fn publish(args: &PubArgs) -> Result<(), ToolError> {
    let connection = args.connection.lower()?;
    let topic = args.topic.clone().or_else(|| connection.topic.clone());
    let topic = topic.ok_or_else(|| ToolError::Usage("a topic is needed: -t TOPIC".into()))?;
    broker::names::check_topic(&topic, &topic::TopicLimits::default())
        .map_err(|error| ToolError::Usage(format!("'{topic}': {error}")))?;
    let mut template = Message::new(topic, Vec::new()).qos(args.qos);
    template.retain = args.retain;
    template.properties = connection.properties.publish.clone();
    // What can fail without a broker fails before one is asked.
    let payload = match args.stdin_line {
        true => None,
        false => Some(read_payload(args)?),
    };
    let (client, _) = connection.open()?;
    let mut publisher = Publisher { client, connection, refused: None };
    match payload {
        Some(payload) => publisher.repeat(&Message { payload, ..template }, args)?,
        None => publisher.lines(&template, args)?,
    }
    publisher.finish()
}

/// Publishes with as many messages in flight as the broker allows, and remembers the first refusal.
struct Publisher {
    client: Client,
    connection: Connection,
    refused: Option<Reason>,
}

impl Publisher {
    /// A line may be long in coming, and the connection must not wait for it.
    fn lines(&mut self, template: &Message, args: &PubArgs) -> Result<(), ToolError> {
        let lines = lines_of_input();
        loop {
            match lines.recv_timeout(INPUT_SLICE) {
                Ok(line) => {
                    let mut payload = line.map_err(|source| reading("standard input", source))?;
                    if payload.last() == Some(&b'\r') {
                        payload.pop();
                    }
                    self.repeat(&Message { payload, ..template.clone() }, args)?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    while self.note_acknowledgement(Duration::ZERO)? {}
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    fn repeat(&mut self, message: &Message, args: &PubArgs) -> Result<(), ToolError> {
        for round in 0..args.repeat {
            if round > 0 && !args.repeat_delay.is_zero() {
                self.wait(args.repeat_delay)?;
            }
            let sent =
                self.client.send(message).map_err(|source| self.connection.failed(source))?;
            self.connection.debug(&format_args!(
                "sent {} bytes to {}, QoS {}",
                message.payload.len(),
                message.topic,
                message.qos as u8
            ));
            if sent.is_some() && self.client.in_flight() >= usize::from(args.max_inflight) {
                self.take_acknowledgement(self.connection.timeout)?;
            }
        }
        Ok(())
    }

    /// Waits while the connection is kept alive.
    fn wait(&mut self, delay: Duration) -> Result<(), ToolError> {
        let until = Instant::now() + delay;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.note_acknowledgement(left)?;
        }
    }

    fn take_acknowledgement(&mut self, timeout: Duration) -> Result<(), ToolError> {
        match self.note_acknowledgement(timeout)? {
            true => Ok(()),
            false => Err(ToolError::Failed(format!(
                "the broker has not acknowledged a message within {} s",
                timeout.as_secs()
            ))),
        }
    }

    fn note_acknowledgement(&mut self, timeout: Duration) -> Result<bool, ToolError> {
        let done =
            self.client.acknowledged(timeout).map_err(|source| self.connection.failed(source))?;
        let Some(done) = done else { return Ok(false) };
        self.connection.debug(&format_args!("acknowledged: {}", done.reason));
        if done.reason.is_error() {
            self.refused.get_or_insert(done.reason);
        }
        Ok(true)
    }

    fn finish(mut self) -> Result<(), ToolError> {
        while self.client.in_flight() > 0 {
            self.take_acknowledgement(self.connection.timeout)?;
        }
        // Acknowledgements that came while something else was waited for.
        while self.note_acknowledgement(Duration::ZERO)? {}
        let Self { client, connection, refused } = self;
        let properties = connection.properties.disconnect.as_properties();
        client
            .disconnect_with(Reason::NORMAL_DISCONNECTION, properties)
            .map_err(|source| connection.failed(source))?;
        match refused {
            Some(reason) => Err(ToolError::refused("a message", reason)),
            None => Ok(()),
        }
    }
}

/// Reads standard input on a thread of its own, which ends with it or with the process.
fn lines_of_input() -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in io::stdin().lock().split(b'\n') {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn read_payload(args: &PubArgs) -> Result<Vec<u8>, ToolError> {
    if let Some(path) = &args.file {
        return std::fs::read(path).map_err(|source| reading(&path.display().to_string(), source));
    }
    if args.stdin_file {
        let mut payload = Vec::new();
        let read = io::stdin().lock().read_to_end(&mut payload);
        return read.map(|_| payload).map_err(|source| reading("standard input", source));
    }
    Ok(args.message.clone().unwrap_or_default().into_bytes())
}

fn reading(what: &str, source: io::Error) -> ToolError {
    ToolError::Io { what: format!("cannot read {what}"), source }
}

fn parse_secs(text: &str) -> Result<Duration, String> {
    let secs: f64 = text.parse().map_err(|_| "must be a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(secs).map_err(|error| error.to_string())
}

/// Where the message comes from: exactly one of them.
const SOURCES: [&str; 5] = ["message", "file", "stdin_line", "stdin_file", "null_message"];

/// How long the connection waits to be looked after while no line comes.
const INPUT_SLICE: Duration = Duration::from_millis(100);

/// Lines that were read and not published yet; then reading waits.
const LINES_MAX: usize = 1_000;

/// Enough to fill any path, and few enough that a refusal is seen soon.
const IN_FLIGHT_MAX: u16 = 1_000;

const EXAMPLES: &str = "\
Examples:
  quelea pub -t home/lamp -m on
  quelea pub -t home/lamp -m on -q 1 -r                 retained, acknowledged
  quelea pub -t home/lamp -r -n                         clears the retained message
  tail -f log | quelea pub -t logs -l                   one message per line
  quelea pub -t t -m x -D publish user-property unit C -D publish message-expiry-interval 60
  quelea pub -L mqtts://anna:s3cret@example.org/home/lamp -m on --cafile ca.pem

Exit codes: 0 published; 1 failed, or a message was refused; 2 wrong usage; when the broker refuses
the connection, its reason code.";
