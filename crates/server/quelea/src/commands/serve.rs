//! `quelea serve`: from arguments to a checked configuration.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::run::{self, Addresses};
use crate::security;
use config::{ConfigError, Flag, Loaded, Machine, SourceFile, Sources, load, print};

use base::{EXIT_OK, EXIT_OPEN, EXIT_USAGE, complain};

/// The flags of `quelea serve`. They take precedence over the configuration file.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Configuration file (TOML). Without one: loopback only, port 1883.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Port of the first tcp:// listener, or of the default ones. 0: any free port.
    #[arg(short, long, value_name = "N")]
    pub port: Option<u16>,
    /// Listen here instead, e.g. tcp://*:1883. May be repeated.
    #[arg(short, long, value_name = "URL")]
    pub listen: Vec<String>,
    /// Data directory: sessions, their messages, retained messages.
    #[arg(short, long, value_name = "DIR")]
    pub data: Option<String>,
    /// Durability level: memory, disk or fsync (the default). With memory nothing is stored.
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<String>,
    /// Shards of state, for a new data directory. Default: one per core, at least 4. If nothing is
    /// stored on disk: one per worker.
    #[arg(long, value_name = "N")]
    pub shards: Option<String>,
    /// Worker threads. Default: one per core.
    #[arg(short, long, value_name = "N")]
    pub workers: Option<String>,
    /// Admit clients without a username, also from other machines.
    #[arg(long)]
    pub allow_anonymous: bool,
    /// Address of /metrics, /healthz and /readyz, or "off".
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Serve the dashboard and the management API at the address of --http. On a terminal a link
    /// to it is printed.
    #[arg(long)]
    pub dashboard: bool,
    /// Log level: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Format of log lines: text or json.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Only check the configuration, the files it names, and the addresses it listens on.
    #[arg(long)]
    pub check_config: bool,
    /// With --check-config: list missing protection, one line each. Exit code 3: there is some.
    #[arg(long, requires = "check_config")]
    pub security: bool,
    /// Print the configuration in force, each value with its source, and exit.
    #[arg(long)]
    pub print_config: bool,
}

impl ServeArgs {
    /// The configuration to serve with.
    ///
    /// # Errors
    ///
    /// The exit code when there is nothing to serve: the configuration is wrong, or was only to be
    /// checked or printed. What there is to say has been said.
    pub fn prepare(&self) -> Result<Loaded, ExitCode> {
        let loaded = self.load(environment(), &Machine::here()).map_err(|error| {
            complain(&error);
            ExitCode::from(EXIT_USAGE)
        })?;
        // Before anything is touched, so that a wrong file is reported as what it is.
        if self.check_config || !self.print_config {
            let notes = run::check_files(&loaded.config).map_err(|error| {
                complain(&format!("{error:#}"));
                ExitCode::from(EXIT_USAGE)
            })?;
            notes.iter().filter(|_| self.check_config).for_each(|note| println!("note: {note}"));
        }
        if self.check_config || !self.print_config {
            self.check_addresses(&loaded)?;
        }
        if self.print_config {
            super::print(print::effective(&loaded).as_bytes());
        } else if self.check_config {
            println!("the configuration is valid");
        }
        if self.security && self.report_open(&loaded) {
            return Err(ExitCode::from(EXIT_OPEN));
        }
        if self.print_config || self.check_config {
            return Err(ExitCode::from(EXIT_OK));
        }
        Ok(loaded)
    }

    /// Tells what is open; false: nothing is.
    fn report_open(&self, loaded: &Loaded) -> bool {
        let found = security::findings(&loaded.config, &Machine::here());
        found.iter().for_each(|line| println!("open: {line}"));
        if found.is_empty() {
            println!("no missing protection found");
        }
        !found.is_empty()
    }

    /// A port that another program has is as wrong at the next attempt. An address that the machine
    /// does not have may come, so a start leaves it to the service manager to try again.
    fn check_addresses(&self, loaded: &Loaded) -> Result<(), ExitCode> {
        match run::check_addresses(&loaded.config) {
            Addresses::Free => Ok(()),
            Addresses::Missing(_) if !self.check_config => Ok(()),
            Addresses::TakenByOurs(error) if self.check_config => {
                let directory = loaded.config.server.data_dir.display();
                println!("note: {error:#}; the broker that runs on {directory} may be the reason");
                Ok(())
            }
            Addresses::Missing(error)
            | Addresses::TakenByOurs(error)
            | Addresses::Unusable(error) => {
                complain(&format!("{error:#}"));
                Err(ExitCode::from(EXIT_USAGE))
            }
        }
    }

    /// Reads the file and puts environment and flags over it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or the configuration is wrong.
    pub fn load(
        &self,
        env: Vec<(String, String)>,
        machine: &Machine,
    ) -> Result<Loaded, ConfigError> {
        let file = match &self.config {
            Some(path) => Some(read(path)?),
            None => None,
        };
        let (listen, port) = (self.listen.clone(), self.port);
        let mut sources = Sources { file, env, flags: self.flags(), listen, port };
        let loaded = load(&sources, machine)?;
        if !self.dashboard || loaded.config.api.is_some() {
            return Ok(loaded);
        }
        let api = Flag { name: "--dashboard", key: "api.listen", value: "http".to_owned() };
        sources.flags.push(api);
        load(&sources, machine)
    }

    /// The configuration as it is now: the file, with environment and flags over it.
    ///
    /// # Errors
    ///
    /// As of [`ServeArgs::load`].
    pub fn reread(&self) -> Result<Loaded, ConfigError> {
        self.load(environment(), &Machine::here())
    }

    fn flags(&self) -> Vec<Flag> {
        let anonymous = self.allow_anonymous.then(|| "true".to_owned());
        let flags = [
            ("--data", "server.data_dir", &self.data),
            ("--durability", "durability.level", &self.durability),
            ("--shards", "server.shards", &self.shards),
            ("--workers", "server.workers", &self.workers),
            ("--allow-anonymous", "auth.allow_anonymous", &anonymous),
            ("--http", "http.listen", &self.http),
            ("--log-level", "log.level", &self.log_level),
            ("--log-format", "log.format", &self.log_format),
        ];
        let given = flags.into_iter().filter_map(|(name, key, value)| {
            value.as_ref().map(|value| Flag { name, key, value: value.clone() })
        });
        given.collect()
    }
}

fn environment() -> Vec<(String, String)> {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
}

fn read(path: &PathBuf) -> Result<SourceFile, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(SourceFile { path: path.clone(), text }),
        Err(error) => {
            let detail = format!("cannot read the configuration: {error}");
            Err(ConfigError::of_file(path, detail))
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  quelea serve                                        loopback, port 1883, data in ./quelea-data
  quelea serve --dashboard                            the same with the dashboard in a browser
  quelea serve --port 2883 --data /var/lib/quelea
  quelea serve --durability memory                    stores nothing, touches no directory
  quelea serve --listen tcp://*:1883 --allow-anonymous
  quelea serve --config /etc/quelea/quelea.toml --check-config
  quelea serve --config /etc/quelea/quelea.toml --check-config --security
  QUELEA_limits__packet_bytes_max=1MiB quelea serve --print-config";

#[cfg(test)]
mod tests {
    use super::*;
    use config::DurabilityLevel;

    const MACHINE: Machine = Machine { cores: 2, ..Machine::UNKNOWN };

    #[test]
    fn flags_reach_their_keys() {
        let args = ServeArgs {
            listen: vec!["tcp://*:7".into()],
            data: Some("/d".into()),
            durability: Some("disk".into()),
            shards: Some("6".into()),
            workers: Some("3".into()),
            allow_anonymous: true,
            http: Some("off".into()),
            log_level: Some("debug".into()),
            log_format: Some("json".into()),
            ..ServeArgs::default()
        };
        let loaded = args.load(Vec::new(), &MACHINE).unwrap();
        let config = &loaded.config;
        assert_eq!((config.server.workers, config.http), (3, None));
        assert_eq!(config.server.data_dir, PathBuf::from("/d"));
        assert_eq!((config.server.shards, config.shards_are_fixed), (6, true));
        assert_eq!(config.durability.level, DurabilityLevel::Disk);
        assert!(config.listeners[0].allow_anonymous);
        let printed = print::effective(&loaded);
        assert!(printed.contains("level = \"debug\" # --log-level"), "{printed}");
        assert!(printed.contains("format = \"json\" # --log-format"), "{printed}");
    }

    #[test]
    fn the_dashboard_is_where_the_api_is() {
        let args = ServeArgs { dashboard: true, ..ServeArgs::default() };
        let api = |args: &ServeArgs, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            args.load(env, &MACHINE).map(|loaded| loaded.config.api.map(|api| api.listen))
        };
        assert_eq!(api(&ServeArgs::default(), &[]).unwrap(), None);
        assert_eq!(api(&args, &[]).unwrap(), Some(config::ApiAddress::Http));
        let own = config::ApiAddress::Own(([127, 0, 0, 1], 7).into());
        let address = [("QUELEA_api__listen", "127.0.0.1:7")];
        assert_eq!(api(&args, &address).unwrap(), Some(own), "an address of its own stays");
        let off = ServeArgs { http: Some("off".into()), ..args };
        assert!(api(&off, &[]).unwrap_err().to_string().contains("--dashboard: api.listen"));
        let remote = ServeArgs { http: Some("0.0.0.0:9883".into()), ..off };
        let error = api(&remote, &[]).unwrap_err().to_string();
        assert!(error.contains("allow_remote"), "{error}");
    }

    #[test]
    fn a_missing_file_and_a_wrong_flag_are_reported() {
        let missing =
            ServeArgs { config: Some("/nonexistent.toml".into()), ..ServeArgs::default() };
        let error = missing.load(Vec::new(), &MACHINE).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent.toml: cannot read"), "{error}");
        let wrong = ServeArgs { log_level: Some("loud".into()), ..ServeArgs::default() };
        let error = wrong.load(Vec::new(), &MACHINE).unwrap_err().to_string();
        assert!(error.starts_with("--log-level: log.level: must be one of \"error\""), "{error}");
    }
}
