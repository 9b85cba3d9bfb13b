//! A log file as an operator reads it. One test: a process has one logger.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::fs;

use config::{LogConfig, LogFormat, LogLevel, LogTarget};
use quelea::logging::{Logging, LoggingError};

#[test]
fn json_lines_go_to_a_file_that_can_be_rotated() {
    let path = std::env::temp_dir().join(format!("quelea-test-{}.log", std::process::id()));
    let rotated = path.with_extension("1");
    let target = LogTarget::File(path.clone());
    let config = LogConfig {
        level: LogLevel::Info,
        format: LogFormat::Json,
        target,
        client_lines_per_second_max: 0,
    };
    Logging::install(&config).unwrap();
    tracing::info!(client = "c1", "first");
    tracing::debug!("not written");
    fs::rename(&path, &rotated).unwrap();
    Logging::reopen_installed().unwrap();
    tracing::warn!("second");
    let panicked = std::thread::spawn(|| panic!("third")).join();
    assert!(panicked.is_err());
    Logging::flush_installed();
    let first = fs::read_to_string(&rotated).unwrap();
    let second = fs::read_to_string(&path).unwrap();
    assert_eq!((first.lines().count(), second.lines().count()), (1, 2));
    assert!(first.starts_with('{') && first.contains("\"message\":\"first\""), "{first}");
    assert!(first.contains("\"client\":\"c1\"") && first.contains("\"level\":\"INFO\""), "{first}");
    assert!(second.contains("second") && second.contains("third"), "{second}");
    assert_eq!(Logging::lines_lost(), 0);
    assert!(matches!(Logging::install(&config), Err(LoggingError::Installed)));
    let nowhere = LogTarget::File("/nonexistent/quelea.log".into());
    let nowhere = LogConfig { target: nowhere, ..config };
    let error = Logging::install(&nowhere).map(drop).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/quelea.log"), "{error}");
    fs::remove_file(path).unwrap();
    fs::remove_file(rotated).unwrap();
}
