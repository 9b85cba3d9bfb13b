//! A broker in a container, run by docker or podman. It shares the network of this machine, so that
//! no proxy stands between it and the load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::description::locate;

/// What a broker that is not installed is run from. Words are filled in as those of the
/// description.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Container {
    pub image: String,
    /// Instead of that of the image.
    pub entrypoint: Option<String>,
    /// Of `docker run`.
    #[serde(default)]
    pub options: Vec<String>,
    /// Behind the image.
    #[serde(default)]
    pub command: Vec<String>,
    /// Beyond those of the description, and instead of those of the same names.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables of our own environment that it gets.
    #[serde(default)]
    pub pass: Vec<String>,
}

/// One that is to be run.
pub(super) struct Boxed<'a> {
    pub container: &'a Container,
    pub runtime: PathBuf,
    pub name: String,
}

/// docker or podman, if one is installed.
pub(super) fn runtime() -> Option<PathBuf> {
    ["docker", "podman"].into_iter().find_map(locate)
}

impl Container {
    /// The tag of the image, which is the version of its broker.
    pub(super) fn version(&self) -> &str {
        self.image.rsplit_once(':').map_or("", |(_, tag)| tag)
    }
}

impl Boxed<'_> {
    /// Downloads the image unless it is there: a start may not take so long.
    pub(super) fn fetch(&self) -> Result<(), String> {
        let image = self.container.image.as_str();
        if self.run(&["image", "inspect", image]).is_ok() {
            return Ok(());
        }
        self.run(&["pull", "--quiet", image]).map(drop)
    }

    /// In the foreground: it ends with the process.
    pub(super) fn command(
        &self,
        (cpus, dir): (Option<&str>, &Path),
        env: &BTreeMap<String, String>,
        fill: &dyn Fn(&str) -> String,
    ) -> Vec<String> {
        let Self { container, runtime, name } = self;
        let mut words: Vec<String> = vec![runtime.display().to_string()];
        words.extend(["run", "--rm", "--name", name, "--network", "host"].map(str::to_owned));
        if let Some(cpus) = cpus {
            words.extend(["--cpuset-cpus", cpus].map(str::to_owned));
        }
        words.extend(["--volume".to_owned(), format!("{0}:{0}", dir.display())]);
        let mut all = env.clone();
        all.extend(container.env.clone());
        for (name, value) in all {
            words.extend(["--env".to_owned(), format!("{name}={}", fill(&value))]);
        }
        for name in &container.pass {
            words.extend(["--env".to_owned(), name.clone()]);
        }
        if let Some(entrypoint) = &container.entrypoint {
            words.extend(["--entrypoint".to_owned(), fill(entrypoint)]);
        }
        words.extend(container.options.iter().map(|word| fill(word)));
        words.push(container.image.clone());
        words.extend(container.command.iter().map(|word| fill(word)));
        words
    }

    /// Prints the process of the broker, which is not that of `docker run`.
    pub(super) fn inspect(&self) -> Vec<String> {
        let runtime = self.runtime.display().to_string();
        let rest = ["inspect", "--format", "{{.State.Pid}}", &self.name].map(str::to_owned);
        std::iter::once(runtime).chain(rest).collect()
    }

    fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let words = || format!("{} {}", self.runtime.display(), arguments.join(" "));
        let done = Command::new(&self.runtime)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("`{}`: {error}", words()))?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        let output = String::from_utf8_lossy(&done.stderr);
        Err(format!("`{}` failed: {}", words(), output.trim()))
    }
}

/// Removes a container that outlived its `docker run`, as after a kill.
pub(super) struct Removal {
    pub runtime: PathBuf,
    pub name: String,
}

impl Drop for Removal {
    fn drop(&mut self) {
        let _ = Command::new(&self.runtime)
            .args(["rm", "--force", &self.name])
            .stdin(Stdio::null())
            .output();
    }
}
