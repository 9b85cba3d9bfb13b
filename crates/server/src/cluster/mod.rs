//! This broker as a node of a cluster. Start reading at `login`.

mod login;

pub use login::check_files;
