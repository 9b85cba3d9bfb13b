//! What a start could not write for lack of space. The broker serves without it, and writes it when
//! there is space.

use std::time::{Duration, Instant};

/// How often it is tried again.
const TRY_INTERVAL: Duration = Duration::from_secs(2);

/// Writes what a broker cannot do without, as soon as there is space. Where a write in place needs
/// space, as on a file system that copies on write, a full disk holds the start up.
///
/// # Errors
///
/// When it cannot be written for another reason.
pub(super) fn write_when_possible<T, E: std::error::Error + 'static>(
    what: &str,
    mut write: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut has_waited = false;
    loop {
        match write() {
            Err(error) if data::lacks_space(&error) => {
                if !std::mem::replace(&mut has_waited, true) {
                    tracing::warn!(%error, "the disk is full: the start waits for space for {what}");
                }
                std::thread::sleep(TRY_INTERVAL);
            }
            written => return written,
        }
    }
}

/// In the order in which it is written. Bound: what a start writes.
pub(super) struct Unwritten {
    items: Vec<(&'static str, Write)>,
    tried: Instant,
}

type Write = Box<dyn FnMut() -> anyhow::Result<()> + Send>;

impl Unwritten {
    pub(super) fn new() -> Self {
        Self { items: Vec::new(), tried: Instant::now() }
    }

    /// Writes something now, or later if the disk is full. False: later.
    ///
    /// # Errors
    ///
    /// When it cannot be written for another reason.
    pub(super) fn write(
        &mut self,
        what: &'static str,
        mut write: impl FnMut() -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<bool> {
        match write() {
            Ok(()) => Ok(true),
            Err(error) if data::lacks_space(error.as_ref()) => {
                self.write_later(what, write);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Something is known to find no space now.
    pub(super) fn write_later(
        &mut self,
        what: &'static str,
        write: impl FnMut() -> anyhow::Result<()> + Send + 'static,
    ) {
        tracing::warn!("the disk is full: {what} will be written when there is space");
        self.items.push((what, Box::new(write)));
    }

    /// Tries again what is due. To be called about once a second.
    pub(super) fn look(&mut self) {
        if self.items.is_empty() || self.tried.elapsed() < TRY_INTERVAL {
            return;
        }
        self.tried = Instant::now();
        while let Some((what, write)) = self.items.first_mut() {
            match write() {
                Ok(()) => tracing::info!("written, after the disk was full: {what}"),
                Err(error) if data::lacks_space(error.as_ref()) => return,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(error, "cannot write {what}");
                }
            }
            drop(self.items.remove(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn what_finds_no_space_is_written_later_and_in_its_order() {
        let space = Arc::new(AtomicUsize::new(0));
        let done: Arc<Mutex<Vec<u32>>> = Arc::default();
        let mut unwritten = Unwritten::new();
        let write = |number: u32| {
            let (space, done) = (space.clone(), done.clone());
            move || {
                if space.load(Ordering::Relaxed) == 0 {
                    return Err(io::Error::from(io::ErrorKind::StorageFull))
                        .context("cannot write");
                }
                space.fetch_sub(1, Ordering::Relaxed);
                done.lock().unwrap().push(number);
                Ok(())
            }
        };
        for number in 1..=3 {
            assert!(!unwritten.write("a file", write(number)).unwrap());
        }
        let mut look = || {
            unwritten.tried -= TRY_INTERVAL;
            unwritten.look();
            done.lock().unwrap().clone()
        };
        assert!(look().is_empty());
        space.store(2, Ordering::Relaxed);
        assert_eq!(look(), [1, 2]);
        space.store(9, Ordering::Relaxed);
        assert_eq!(look(), [1, 2, 3]);
        assert!(unwritten.items.is_empty());
        let denied = || Err(io::Error::from(io::ErrorKind::PermissionDenied).into());
        unwritten.write("a file", denied).unwrap_err();
    }
}
