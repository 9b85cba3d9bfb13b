//! The first requests of a connection to Kafka, up to the answer that names the server's versions.
//!
//! krafka begins with version 4 of ApiVersions. Azure Event Hubs closes the connection on it, while
//! servers of Kafka answer that the version is unsupported. This answer is given here, so every
//! server is asked in version 3, as by older clients.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::dial::Wire;

/// Passes requests and answers on, one after the other, until both sides know their versions.
pub(crate) async fn negotiate(client: &mut impl Wire, server: &mut impl Wire) -> io::Result<()> {
    for _ in 0..REQUESTS_MAX {
        let request = read_frame(client).await?;
        let Some(header) = Header::of(&request) else {
            return Err(invalid("a request without a header"));
        };
        if header.api == API_VERSIONS && header.version > API_VERSIONS_MAX {
            client.write_all(&unsupported_version(header.correlation)).await?;
            continue;
        }
        server.write_all(&request).await?;
        server.flush().await?;
        let answer = read_frame(server).await?;
        client.write_all(&answer).await?;
        let is_unsupported = answer.get(8..10) == Some(&UNSUPPORTED_VERSION.to_be_bytes()[..]);
        if header.api == API_VERSIONS && !is_unsupported {
            return Ok(());
        }
    }
    Err(invalid("too many requests before the versions are known"))
}

struct Header {
    api: i16,
    version: i16,
    correlation: [u8; 4],
}

impl Header {
    fn of(frame: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(i16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let correlation = frame.get(8..12)?.try_into().ok()?;
        Some(Self { api: number(4)?, version: number(6)?, correlation })
    }
}

/// A request or an answer, with its length.
async fn read_frame(stream: &mut impl Wire) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let count = u32::from_be_bytes(length) as usize;
    if count > FRAME_BYTES_MAX {
        return Err(invalid("a login or a list of versions that is too large"));
    }
    let mut frame = vec![0; 4 + count];
    frame[..4].copy_from_slice(&length);
    stream.read_exact(&mut frame[4..]).await?;
    Ok(frame)
}

/// As Kafka answers it: in version 0, with the range of ApiVersions alone.
fn unsupported_version(correlation: [u8; 4]) -> Vec<u8> {
    let mut body = correlation.to_vec();
    body.extend(UNSUPPORTED_VERSION.to_be_bytes());
    body.extend(1_i32.to_be_bytes());
    for number in [API_VERSIONS, 0, API_VERSIONS_MAX] {
        body.extend(number.to_be_bytes());
    }
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    frame
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

const API_VERSIONS: i16 = 18;
/// The newest that every server takes or refuses with an answer.
const API_VERSIONS_MAX: i16 = 3;
const UNSUPPORTED_VERSION: i16 = 35;
/// A login has up to five, the versions up to three.
const REQUESTS_MAX: usize = 16;
const FRAME_BYTES_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    fn request(api: i16, version: i16, correlation: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 9];
        frame.extend(api.to_be_bytes());
        frame.extend(version.to_be_bytes());
        frame.extend([0, 0, 0, correlation, 7]);
        frame
    }

    fn answer(correlation: u8, error: i16) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 6, 0, 0, 0, correlation];
        frame.extend(error.to_be_bytes());
        frame
    }

    #[tokio::test]
    async fn version_4_is_answered_here_and_version_3_there() {
        let (mut client, mut inner) = duplex(1024);
        let (mut outer, mut server) = duplex(1024);
        let relay = tokio::spawn(async move { negotiate(&mut inner, &mut outer).await });
        client.write_all(&request(36, 2, 1)).await.unwrap();
        assert_eq!(read_frame(&mut server).await.unwrap(), request(36, 2, 1));
        server.write_all(&answer(1, 0)).await.unwrap();
        assert_eq!(read_frame(&mut client).await.unwrap(), answer(1, 0));
        client.write_all(&request(API_VERSIONS, 4, 2)).await.unwrap();
        let refused = read_frame(&mut client).await.unwrap();
        assert_eq!(refused[4..], [0, 0, 0, 2, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 3]);
        client.write_all(&request(API_VERSIONS, 3, 3)).await.unwrap();
        assert_eq!(read_frame(&mut server).await.unwrap(), request(API_VERSIONS, 3, 3));
        // An older server still.
        server.write_all(&answer(3, UNSUPPORTED_VERSION)).await.unwrap();
        assert_eq!(read_frame(&mut client).await.unwrap(), answer(3, UNSUPPORTED_VERSION));
        client.write_all(&request(API_VERSIONS, 2, 4)).await.unwrap();
        assert_eq!(read_frame(&mut server).await.unwrap(), request(API_VERSIONS, 2, 4));
        server.write_all(&answer(4, 0)).await.unwrap();
        assert_eq!(read_frame(&mut client).await.unwrap(), answer(4, 0));
        relay.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn garbage_ends_the_connection() {
        for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0, 0, 0, 2, 1, 2]] {
            let (mut client, mut inner) = duplex(1024);
            let (mut outer, _server) = duplex(1024);
            client.write_all(garbage).await.unwrap();
            let error = negotiate(&mut inner, &mut outer).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
