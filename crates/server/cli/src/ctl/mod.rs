//! `quelea ctl`: sees and changes a running broker, by its management API.
//!
//! Exit codes beside those of all commands: 4, the broker did not let us; 5, there is none of that
//! name.

mod backup;
mod ban;
mod clients;
mod definitions;
mod events;
mod http;
mod may;
mod ns;
mod operate;
mod registry;
mod retained;
mod routing;
mod table;
mod top;
mod topics;
mod trace;
mod users;
mod within;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use web::{ClientTls, percent_encoded};

use self::routing::{RulesCommand, StreamsCommand};
use backup::BackupArgs;
use ban::BanCommand;
use base::{EXIT_FAILURE, EXIT_OK, complain};
use clients::ClientsCommand;
use definitions::TargetsCommand;
use events::EventsArgs;
use http::{Credentials, Http};
use may::MayArgs;
use ns::NsCommand;
use operate::{LogLevelArgs, LogLinesArgs};
use registry::RegistryCommand;
use retained::RetainedCommand;
use table::Column;
use table::print;
use top::TopArgs;
use topics::{SubsArgs, TopicsArgs};
use trace::TraceArgs;
use users::UsersCommand;
use within::Within;

/// Flags and commands of `quelea ctl`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct CtlArgs {
    #[command(flatten)]
    access: Access,
    /// Print the JSON of the API.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

/// Address of the broker, and credentials.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Access and output")]
struct Access {
    /// Address of the API, or QUELEA_API_URL. Default: the address in the token file.
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
    /// CA certificates (PEM) for an https:// URL. Default: those of the system.
    #[arg(long, alias = "ca-file", global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Client certificate (PEM) for an https:// URL. Without --user and --token-file it is the only
    /// credential.
    #[arg(long, global = true, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    #[arg(long, global = true, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Data directory of a broker on this machine, with its token file.
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with the token. Default: api.token in the data directory.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A user of api.password_file. The password is read from QUELEA_PASSWORD, from
    /// --user-password-file, or from the terminal.
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// File with the password of --user in its first line.
    #[arg(long, global = true, value_name = "FILE", requires = "user")]
    user_password_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
enum CtlCommand {
    /// Show version, state and totals of the broker.
    Info,
    /// Print a link that opens the dashboard, once, within 10 minutes.
    Dashboard,
    /// Show rates and slow clients, updated until interrupted.
    Top(TopArgs),
    /// List, show, disconnect or delete clients, connected or not.
    #[command(subcommand)]
    Clients(ClientsCommand),
    /// List, add or remove bans.
    #[command(subcommand)]
    Ban(BanCommand),
    /// Show namespaces with their limits and usage.
    #[command(subcommand)]
    Ns(NsCommand),
    /// List, add, change or delete users of the password file.
    #[command(subcommand)]
    Users(UsersCommand),
    /// List, show, add, change or delete the clients of a registry.
    #[command(subcommand)]
    Registry(RegistryCommand),
    /// Write a backup of the broker's data directory as a tar archive.
    Backup(BackupArgs),
    /// Print life-cycle events until interrupted.
    Events(EventsArgs),
    /// Print the packets of a client until interrupted.
    Trace(TraceArgs),
    /// List the subscriptions of a client, or those of all clients that match all filters.
    Subs(SubsArgs),
    /// List a level of the tree of topics with a retained message.
    Topics(TopicsArgs),
    /// List the clients that receive messages on a topic.
    Who {
        topic: String,
        #[command(flatten)]
        within: Within,
    },
    /// Say whether a client may do something, and which rule decides it. Exit code 1: denied.
    May(MayArgs),
    /// List, show, set or clear retained messages.
    #[command(subcommand)]
    Retained(RetainedCommand),
    /// Publish a message.
    Publish(PublishArgs),
    /// List shared subscriptions and their members.
    #[command(subcommand)]
    Groups(Groups),
    /// List, pause or resume listeners.
    Listeners {
        #[command(subcommand)]
        command: Option<Listeners>,
    },
    /// List what needs a person, the worst first: bridges, certificates, log, limits, services.
    Alarms,
    /// List the bridges to other brokers, with their state.
    Bridges,
    /// List, show, define or delete streams.
    Streams {
        #[command(subcommand)]
        command: Option<StreamsCommand>,
    },
    /// List, show, define or delete targets of rules.
    Targets {
        #[command(subcommand)]
        command: Option<TargetsCommand>,
    },
    /// List, show, pause, resume, move, define or delete rules, which send messages of streams to
    /// targets.
    Rules {
        #[command(subcommand)]
        command: Option<RulesCommand>,
    },
    /// Show the durable log of each shard.
    Logs,
    /// List the last calls of the API that changed something or were refused.
    Audit,
    /// Show the memory of the broker, and the users and addresses that use most.
    Memory,
    /// Count dropped messages by reason, or list the clients that lost messages.
    Drops {
        #[command(subcommand)]
        command: Option<DropsCommand>,
    },
    /// Show the configuration in force, or change it while the broker runs.
    Settings {
        #[command(subcommand)]
        command: Option<SettingsCommand>,
    },
    /// Reload passwords, registries, access rules, bans, namespaces, certificates, and settings
    /// that change while the broker runs. SIGHUP does the same.
    Reload,
    /// List the last lines of the log, the newest first.
    LogLines(LogLinesArgs),
    /// Show or set the log level.
    LogLevel(LogLevelArgs),
}

#[derive(Clone, Debug, Subcommand)]
enum DropsCommand {
    /// List the clients that lost messages in the last hour, most messages first.
    Clients {
        #[command(flatten)]
        within: Within,
    },
}

#[derive(Clone, Debug, Subcommand)]
enum SettingsCommand {
    /// Set a key until a restart, or until the configuration has another value for it.
    Set {
        /// Section and key, such as log.level.
        #[arg(value_name = "KEY")]
        setting: String,
        /// As in an environment variable.
        value: String,
    },
    /// Bring the configured value of a key back.
    Reset {
        /// Section and key.
        #[arg(value_name = "KEY")]
        setting: String,
    },
}

#[derive(Clone, Debug, Args)]
struct PublishArgs {
    topic: String,
    #[command(flatten)]
    within: Within,
    #[arg(short, long)]
    message: String,
    #[arg(short, long, default_value_t = 1, value_parser = qos_level)]
    qos: u8,
    /// Retain the message.
    #[arg(short, long)]
    retain: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum Listeners {
    /// Close new connections at once; present connections stay.
    Pause { name: String },
    /// Accept connections again.
    Resume { name: String },
}

#[derive(Clone, Debug, Subcommand)]
enum Groups {
    /// List all shared subscriptions.
    List(Within),
    /// List the members of a shared subscription.
    Members {
        share: String,
        filter: String,
        #[command(flatten)]
        within: Within,
    },
}

/// Runs the command; the result is the exit code.
pub fn run(args: &CtlArgs) -> u8 {
    let done = args.access.open().and_then(|http| Ctl { http, json: args.json }.run(&args.command));
    match done {
        Ok(()) => EXIT_OK,
        Err(Failure { code, text }) => {
            if !text.is_empty() {
                complain(&text);
            }
            code
        }
    }
}

/// What went wrong, with its exit code.
#[derive(Debug)]
struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    fn new(text: impl Into<String>) -> Self {
        Self { code: EXIT_FAILURE, text: text.into() }
    }
}

/// The broker did not let us.
const EXIT_NOT_ALLOWED: u8 = 4;
/// There is none of that name.
const EXIT_NONE: u8 = 5;

impl Access {
    fn open(&self) -> Result<Http, Failure> {
        let env = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let mut tls = ClientTls {
            ca: self.ca.as_deref(),
            identity: self.cert.as_deref().zip(self.key.as_deref()),
            is_insecure: false,
        };
        let given_url = self.url.clone().or_else(|| env("QUELEA_API_URL"));
        if let Some(user) = &self.user {
            let credentials = Credentials::Password(user.clone(), self.password(env)?);
            return Http::new(given_url.as_deref().unwrap_or(URL_DEFAULT), &tls, credentials);
        }
        if let Some(token) = env("QUELEA_API_TOKEN") {
            let url = given_url.unwrap_or_else(|| URL_DEFAULT.to_owned());
            return Http::new(&url, &tls, Credentials::Token(token));
        }
        if let Some(url) = given_url.as_ref().filter(|_| self.cert.is_some())
            && self.token_file.is_none()
            && self.data.is_none()
        {
            return Http::new(url, &tls, Credentials::Certificate);
        }
        let data = self.data.clone().or_else(|| env("QUELEA_server__data_dir").map(PathBuf::from));
        let data = data.unwrap_or_else(|| PathBuf::from("quelea-data"));
        let path = self.token_file.clone().unwrap_or_else(|| data.join(config::TOKEN_FILE));
        let (token, noted) = read_token(&path)?;
        // Certificates are not issued for loopback addresses, and what answers there is on this
        // machine, as the file is.
        tls.is_insecure = given_url.is_none() && tls.ca.is_none() && is_loopback(&noted);
        let url = given_url.unwrap_or(noted);
        Http::new(&url, &tls, Credentials::Token(token))
    }

    fn password(&self, env: impl Fn(&str) -> Option<String>) -> Result<String, Failure> {
        if let Some(path) = &self.user_password_file {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::new(format!("cannot read {}: {error}", path.display()))
            })?;
            return Ok(text.lines().next().unwrap_or_default().to_owned());
        }
        match env("QUELEA_PASSWORD") {
            Some(password) => Ok(password),
            None => rpassword::prompt_password("Password: ")
                .map_err(|error| Failure::new(format!("cannot read the password: {error}"))),
        }
    }
}

fn is_loopback(url: &str) -> bool {
    let host = net::Url::parse(url).ok().and_then(|url| url.host.parse::<IpAddr>().ok());
    host.is_some_and(|ip| ip.is_loopback())
}

/// The token, and where the broker said that its API is.
fn read_token(path: &Path) -> Result<(String, String), Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let shown = path.display();
        Failure::new(format!(
            "cannot read {shown}: {error}; name the data directory with --data, or the file with \
             --token-file; the broker creates it when api.listen is set"
        ))
    })?;
    let mut lines = text.lines().map(str::trim);
    let token = lines.next().unwrap_or_default().to_owned();
    let url = lines.next().filter(|line| !line.is_empty()).unwrap_or(URL_DEFAULT);
    Ok((token, url.to_owned()))
}

const URL_DEFAULT: &str = "http://127.0.0.1:9883";

/// Rows that are asked for at a time.
const PAGE_ROWS: usize = 1_000;

struct Ctl {
    http: Http,
    json: bool,
}

impl Ctl {
    fn run(&self, command: &CtlCommand) -> Result<(), Failure> {
        match command {
            CtlCommand::Info => self.show("/broker"),
            CtlCommand::Dashboard => self.dashboard(),
            CtlCommand::Top(args) => self.top(args),
            CtlCommand::Clients(command) => self.clients(command),
            CtlCommand::Ban(command) => self.ban(command),
            CtlCommand::Ns(command) => self.ns(command),
            CtlCommand::Users(command) => self.users(command),
            CtlCommand::Registry(command) => self.registry(command),
            CtlCommand::Backup(args) => self.backup(args),
            CtlCommand::Events(args) => self.events(args),
            CtlCommand::Trace(args) => self.trace(args),
            CtlCommand::Subs(args) => self.subs(args),
            CtlCommand::Topics(args) => self.topics(args),
            CtlCommand::May(args) => self.may(args),
            CtlCommand::Who { topic, within } => {
                let query = within.and(&[("topic", topic)]);
                self.list("/topics/receivers", &query, 0, RECEIVERS)
            }
            CtlCommand::Retained(command) => self.retained(command),
            CtlCommand::Publish(args) => self.publish(args),
            CtlCommand::Groups(Groups::List(within)) => {
                self.list("/groups", &within.and(&[]), 0, GROUPS)
            }
            CtlCommand::Groups(Groups::Members { share, filter, within }) => {
                let query = within.and(&[("share", share), ("filter", filter)]);
                self.list("/groups/members", &query, 0, MEMBERS)
            }
            CtlCommand::Alarms => self.list("/alarms", &[], 0, operate::ALARMS),
            CtlCommand::Bridges => self.list("/bridges", &[], 0, BRIDGES),
            CtlCommand::Streams { command } => self.streams(command.as_ref()),
            CtlCommand::Targets { command } => self.targets(command.as_ref()),
            CtlCommand::Rules { command } => self.rules(command.as_ref()),
            CtlCommand::Listeners { command } => self.listeners(command.as_ref()),
            CtlCommand::Logs => self.logs(),
            CtlCommand::Audit => self.list("/audit", &[], 100, operate::AUDIT),
            CtlCommand::Memory => self.memory(),
            CtlCommand::Drops { command: None } => self.list("/drops", &[], 0, operate::DROPS),
            CtlCommand::Drops { command: Some(DropsCommand::Clients { within }) } => {
                self.list("/drops/clients", &within.and(&[]), 0, operate::CLIENT_DROPS)
            }
            CtlCommand::Reload => self.reload(),
            CtlCommand::LogLevel(args) => self.log_level(args),
            CtlCommand::LogLines(args) => self.log_lines(args),
            CtlCommand::Settings { command } => self.settings(command.as_ref()),
        }
    }

    fn dashboard(&self) -> Result<(), Failure> {
        let link = self.http.call("POST", "/sessions/link", None)?;
        if self.json {
            return self.print_value(&link);
        }
        let code = link["code"].as_str().unwrap_or_default();
        print(format!("{}/#login={code}\n", self.http.base()).as_bytes());
        Ok(())
    }

    fn settings(&self, command: Option<&SettingsCommand>) -> Result<(), Failure> {
        let path = |key: &str| format!("/settings/{}", percent_encoded(key));
        let set = match command {
            None => return self.list("/settings", &[], 0, SETTINGS),
            Some(SettingsCommand::Set { setting, value }) => {
                self.http.call("PUT", &path(setting), Some(&json!({ "value": value })))
            }
            Some(SettingsCommand::Reset { setting }) => {
                self.http.call("DELETE", &path(setting), None)
            }
        };
        self.print_value(&set?)
    }

    fn listeners(&self, command: Option<&Listeners>) -> Result<(), Failure> {
        let (what, name) = match command {
            None => return self.list("/listeners", &[], 0, LISTENERS),
            Some(Listeners::Pause { name }) => ("pause", name),
            Some(Listeners::Resume { name }) => ("resume", name),
        };
        let path = format!("/listeners/{what}?name={}", percent_encoded(name));
        self.http.call("POST", &path, None).map(drop)
    }

    fn publish(&self, args: &PublishArgs) -> Result<(), Failure> {
        let PublishArgs { topic, within, message, qos, retain } = args;
        let body = json!({ "topic": topic, "payload": message, "qos": qos, "retain": retain });
        let path = format!("/publish{}", query_of(&within.and(&[])));
        self.print_value(&self.http.call("POST", &path, Some(&body))?)
    }

    /// One thing, field by field.
    fn show(&self, path: &str) -> Result<(), Failure> {
        self.print_value(&self.http.call("GET", path, None)?)
    }

    fn print_value(&self, value: &Value) -> Result<(), Failure> {
        let text = if self.json { format!("{value:#}\n") } else { table::fields(value) };
        print(text.as_bytes());
        Ok(())
    }

    /// The rows of a list, so many at most (0: all), as they come.
    fn list(
        &self,
        path: &str,
        query: &[(&str, &str)],
        limit: usize,
        columns: &[Column],
    ) -> Result<(), Failure> {
        let (rows, has_more) = self.rows(path, query, limit)?;
        if self.json {
            print(format!("{:#}\n", Value::Array(rows)).as_bytes());
        } else {
            print(table::table(&rows, columns).as_bytes());
        }
        if has_more {
            complain(&format!("first {limit} rows; --limit 0 shows all"));
        }
        Ok(())
    }

    fn rows(
        &self,
        path: &str,
        query: &[(&str, &str)],
        limit: usize,
    ) -> Result<(Vec<Value>, bool), Failure> {
        let is_paged =
            !["/alarms", "/bridges", "/listeners", "/settings", "/logs", "/drops"].contains(&path);
        let wanted = if limit == 0 { usize::MAX } else { limit };
        let mut rows: Vec<Value> = Vec::new();
        let mut cursor = None::<String>;
        loop {
            let count = (wanted - rows.len()).min(PAGE_ROWS).to_string();
            let mut pairs = query.to_vec();
            if is_paged {
                pairs.push(("limit", &count));
            }
            pairs.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let mut page = self.http.call("GET", &format!("{path}{}", query_of(&pairs)), None)?;
            if let Some(items) = page["items"].as_array_mut() {
                rows.append(items);
            }
            cursor = page["cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || rows.len() >= wanted {
                return Ok((rows, cursor.is_some()));
            }
        }
    }

    /// Their figures become columns.
    fn logs(&self) -> Result<(), Failure> {
        let (mut rows, _) = self.rows("/logs", &[], 0)?;
        if self.json {
            print(format!("{:#}\n", Value::Array(rows)).as_bytes());
            return Ok(());
        }
        for row in &mut rows {
            for figure in row["figures"].as_array().cloned().unwrap_or_default() {
                if let Some(name) = figure["name"].as_str() {
                    row[name] = figure["value"].clone();
                }
            }
        }
        print(table::table(&rows, LOGS).as_bytes());
        Ok(())
    }
}

fn qos_level(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|level| *level <= 2).ok_or_else(|| "must be 0, 1 or 2".to_owned())
}

fn client_path(client_id: &str, what: &str, namespace: &str) -> String {
    format!("/client{what}{}", query_of(&[("client_id", client_id), ("namespace", namespace)]))
}

fn query_of(pairs: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| format!("{name}={}", percent_encoded(value));
    match pairs {
        [] => String::new(),
        pairs => format!("?{}", pairs.iter().map(pair).collect::<Vec<_>>().join("&")),
    }
}

const RECEIVERS: &[Column] = &[
    Column("CLIENT", "client_id"),
    Column("GROUP", "share"),
    Column("FILTER", "filter"),
    Column("QOS", "qos"),
    Column("ONLINE", "connected"),
    Column("ALLOWED", "allowed"),
];
const GROUPS: &[Column] = &[
    Column("NAMESPACE", "namespace"),
    Column("GROUP", "share"),
    Column("FILTER", "filter"),
    Column("MEMBERS", "members"),
    Column("ONLINE", "online"),
    Column("WAITING", "waiting"),
];
const MEMBERS: &[Column] = &[
    Column("CLIENT", "client_id"),
    Column("QOS", "qos"),
    Column("ONLINE", "connected"),
    Column("IN FLIGHT", "in_flight"),
];
const LISTENERS: &[Column] = &[
    Column("LISTENER", "name"),
    Column("URL", "url"),
    Column("CONNECTIONS", "connections"),
    Column("ACCEPTED", "accepted"),
    Column("ADMITTED", "admitted"),
    Column("PAUSED", "paused"),
    Column("CERTIFICATE DAYS", "certificate_days_left"),
];
const BRIDGES: &[Column] = &[
    Column("BRIDGE", "name"),
    Column("STATE", "state"),
    Column("ADDRESS", "address"),
    Column("OUT", "messages_out"),
    Column("IN", "messages_in"),
    Column("REFUSED OUT", "refused_out"),
    Column("REFUSED IN", "refused_in"),
    Column("LAG", "lag_messages"),
    Column("ERROR", "error"),
];
const LOGS: &[Column] = &[
    Column("SHARD", "shard"),
    Column("STATE", "state"),
    Column("LIVE BYTES", "live_bytes"),
    Column("USED BYTES", "used_bytes"),
    Column("SEGMENTS", "segments"),
];
const SETTINGS: &[Column] = &[
    Column("KEY", "key"),
    Column("VALUE", "value"),
    Column("CHANGES WHILE RUNNING", "changes_while_running"),
    Column("FROM", "origin"),
];

const EXAMPLES: &str = "\
Examples:
  quelea ctl info                                 version, state, totals
  quelea ctl dashboard                            a link that opens it in a browser
  quelea ctl clients list --offline --limit 0     all sessions without a connection
  quelea ctl top                                  rates and slow clients
  quelea ctl clients show dev-7 --json
  quelea ctl clients kick dev-7                   disconnects it
  quelea ctl clients list --namespace red         clients of one namespace
  quelea ctl ban add address 192.0.2.0/24 --for 12h
  quelea ctl events --type session.               connects and disconnects
  quelea ctl trace dev-7                          its packets as they come and go
  quelea ctl who vehicles/7/speed                 clients that receive this topic
  quelea ctl topics home                          topics below home with a retained message
  quelea ctl may dev-7 publish home/lamp          allowed or not, and the rule that decides
  quelea ctl retained list 'home/#'
  quelea ctl publish home/lamp -m on
  quelea ctl rules                                rules with their lag and state
  quelea ctl rules show archive
  quelea ctl rules pause archive
  quelea ctl rules seek archive --to 2026-12-31T23:59:59Z
  quelea ctl backup monday.tar                    a backup, also from another machine
  quelea ctl --data /var/lib/quelea groups list
  quelea ctl --url http://127.0.0.1:9884 --user anna info
The broker has to run with `listen` under [api]; the token is read from its data directory.
Exit codes: 0 done; 1 failed; 2 wrong usage; 4 not allowed; 5 no such name.";
