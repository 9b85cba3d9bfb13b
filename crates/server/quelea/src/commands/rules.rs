//! `quelea rules`: checks files of rules, and shows what they make of a message.

mod message;
mod shown;

use std::path::{Path, PathBuf};

use base::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, complain, print};
use clap::{ArgGroup, Args, Subcommand};
use routing::definitions;
use routing::event_grid::EventGridError;
use routing::{Definitions, Event, Rule, event_grid};

use crate::run::routing::{self as files, DefinitionsError};

use message::MessageArgs;

/// The arguments of `quelea rules`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RulesArgs {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum RulesCommand {
    /// Check files of rules, and print errors with their lines.
    ///
    /// Files of secrets and certificates that targets name are read. Nothing is sent.
    ///
    /// Exit code: 0 all are valid, 2 one is invalid.
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Show which rules match a message, the event it becomes, and its target.
    ///
    /// Nothing is sent.
    ///
    /// Exit code: 0 an enabled rule matches, 1 none does, 2 an invalid file or message.
    #[command(after_help = TEST_EXAMPLES)]
    Test(Box<TestArgs>),
}

#[derive(Clone, Debug, Args)]
struct CheckArgs {
    /// Files of streams, targets and rules (TOML).
    #[arg(required_unless_present = "event_grid")]
    files: Vec<PathBuf>,
    /// A file with exported resources of Azure Event Grid (JSON). May be repeated.
    #[arg(long, value_name = "FILE")]
    event_grid: Vec<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("source").required(true).args(["rules", "event_grid"]))]
struct TestArgs {
    /// The file of streams, targets and rules (TOML).
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// A file with exported resources of Azure Event Grid (JSON).
    #[arg(long, value_name = "FILE")]
    event_grid: Option<PathBuf>,
    #[command(flatten)]
    message: MessageArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
enum RulesError {
    #[error(transparent)]
    Definitions(#[from] DefinitionsError),
    #[error("{path}: {source}", path = path.display())]
    EventGrid { path: PathBuf, source: EventGridError },
    #[error("{0}")]
    Message(String),
}

/// Runs the command; the result is the exit code.
pub fn run(args: &RulesArgs) -> u8 {
    match &args.command {
        RulesCommand::Check(args) => check(args),
        RulesCommand::Test(args) => test(args).unwrap_or_else(|error| {
            complain(&error);
            EXIT_USAGE
        }),
    }
}

/// All files are checked, though one is wrong.
fn check(args: &CheckArgs) -> u8 {
    let files = args.files.iter().map(|path| (path, checked(path)));
    let exports = args.event_grid.iter().map(|path| (path, exported(path)));
    let mut code = EXIT_OK;
    for (path, loaded) in files.chain(exports) {
        match loaded {
            Ok(loaded) => {
                print(summary(path, &loaded).as_bytes());
            }
            Err(error) => {
                complain(&error);
                code = EXIT_USAGE;
            }
        }
    }
    code
}

/// The rules of a file, and what there is to say about them.
struct Rules {
    rules: Vec<Rule>,
    notes: Vec<String>,
    /// What else is in the file, for people.
    others: String,
}

/// Also reads the files that targets name, such as those of passwords.
fn checked(path: &Path) -> Result<Rules, RulesError> {
    let loaded = files::check(path, &files::read(path)?, &[])?;
    Ok(Rules::of(loaded.definitions))
}

fn rules_of(path: &Path) -> Result<Rules, RulesError> {
    let text = files::read(path)?;
    let found = definitions::parse(&text)
        .map_err(|problems| DefinitionsError::Problems { path: path.to_owned(), problems })?;
    Ok(Rules::of(found))
}

impl Rules {
    fn of(found: Definitions) -> Self {
        let notes = found.notes();
        let others = format!("streams {}, targets {}, ", found.streams.len(), found.targets.len());
        let rules = found.rules.into_iter().map(|spec| spec.rule).collect();
        Self { rules, notes, others }
    }
}

fn exported(path: &Path) -> Result<Rules, RulesError> {
    let text = files::read(path)?;
    let imported = event_grid::read(&text)
        .map_err(|source| RulesError::EventGrid { path: path.to_owned(), source })?;
    let mut notes: Vec<String> = imported.notes.iter().map(ToString::to_string).collect();
    notes.extend(notes_of(&imported.rules));
    Ok(Rules { rules: imported.rules, notes, others: String::new() })
}

fn notes_of(rules: &[Rule]) -> Vec<String> {
    let of_rule = |rule: &Rule| {
        let name = rule.name().to_owned();
        rule.notes().into_iter().map(move |note| format!("rule {name}: {note}"))
    };
    rules.iter().flat_map(of_rule).collect()
}

fn summary(path: &Path, Rules { rules, notes, others }: &Rules) -> String {
    let path = path.display();
    let mut text: String = notes.iter().map(|note| format!("note: {path}: {note}\n")).collect();
    let enabled = rules.iter().filter(|rule| rule.is_enabled()).count();
    text.push_str(&format!("{path}: valid: {others}rules {}, enabled {enabled}\n", rules.len()));
    base::seen_lines(&text).into_owned()
}

fn test(args: &TestArgs) -> Result<u8, RulesError> {
    let loaded = match (&args.rules, &args.event_grid) {
        (Some(path), _) => rules_of(path)?,
        (None, Some(path)) => exported(path)?,
        // The flags are a group, of which one is required.
        (None, None) => Rules { rules: Vec::new(), notes: Vec::new(), others: String::new() },
    };
    let message = args.message.read().map_err(RulesError::Message)?;
    let code = message.with_record(|record| {
        let event = Event::new(record);
        let answers: Vec<_> =
            loaded.rules.iter().map(|rule| shown::Answer::new(rule, &event)).collect();
        let text = match args.json {
            true => shown::json(&answers, &event, &loaded.notes),
            false => shown::text(&answers, &event, &loaded.notes),
        };
        print(text.as_bytes());
        match answers.iter().any(|answer| answer.is_routed()) {
            true => EXIT_OK,
            false => EXIT_FAILURE,
        }
    });
    Ok(code)
}

const EXAMPLES: &str = "\
Examples:
  quelea rules check rules.toml
  quelea rules test --rules rules.toml -t plants/7/motor -m '{\"celsius\": 91}' --pfi 1";

const CHECK_EXAMPLES: &str = "\
Examples:
  quelea rules check rules.toml more-rules.toml
  quelea rules check --event-grid exported.json";

const TEST_EXAMPLES: &str = "\
Examples:
  quelea rules test --rules rules.toml -t plants/7/motor -m '{\"celsius\": 91}' --pfi 1
  quelea rules test --rules rules.toml -t plants/7 -m on -i c7 -u anna -a site=berlin
  quelea rules test --rules rules.toml -t plants/7 -m on --property unit=C --json
  quelea rules test --rules rules.toml --message-file message.json
  quelea rules test --event-grid exported.json -t plants/7 -m 21 --content-type text/plain";
