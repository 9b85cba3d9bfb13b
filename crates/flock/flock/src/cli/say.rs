//! What is said on the terminal. Whoever reads it may be gone (`| head`, a closed window), and
//! where it goes may have no more room: that ends no run, and takes no results away.

use std::fmt::Arguments;
use std::io::Write as _;

/// On the standard output.
pub(crate) fn out(words: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let words = words.to_string();
    let _ = out.write_all(base::seen_lines(&words).as_bytes()).and_then(|()| out.flush());
}

/// On the standard error output, with the end of the line.
pub(crate) fn aside(words: Arguments<'_>) {
    let words = words.to_string();
    let _ = writeln!(std::io::stderr().lock(), "{}", base::seen_lines(&words));
}

/// As `println!`, but that nothing comes of it if nobody reads.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::cli::say::out(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// As `eprintln!`, likewise.
macro_rules! note {
    ($($words:tt)*) => { $crate::cli::say::aside(format_args!($($words)*)) };
}

pub(crate) use {note, say};
