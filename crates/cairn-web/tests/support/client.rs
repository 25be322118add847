//! Asks a server as a browser does, and as one that does not keep to the rules.

#![allow(dead_code, reason = "each user of this file needs a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Address and token of a server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

/// Status, headers and body of an answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The JSON object in front of columns.
    pub(crate) fn object(&self) -> serde_json::Value {
        let length = u32::from_le_bytes(self.body[..4].try_into().unwrap()) as usize;
        serde_json::from_slice(&self.body[4..4 + length]).unwrap()
    }
}

impl Server {
    /// Reads `http://127.0.0.1:PORT/TOKEN/`.
    pub(crate) fn at(url: &str) -> Self {
        let rest = url.trim().strip_prefix("http://").unwrap();
        let (address, token) = rest.split_once('/').unwrap();
        // Behind the token there may be the state of the page.
        let token = token.split('/').next().unwrap();
        Self { address: address.parse().unwrap(), token: token.to_owned() }
    }

    /// Sends bytes as they are, and reads to the end.
    pub(crate) fn send(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // A server that has refused already does not read to the end.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or_else(|| {
            panic!("no answer to {}: {bytes:?}", String::from_utf8_lossy(&request[..request.len().min(200)]))
        });
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Answer { status, headers, body: bytes[end + 4..].to_vec() }
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut bytes = (request + "\r\n").into_bytes();
        bytes.extend_from_slice(body);
        self.send(&bytes)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", &format!("/api/1/{path}"), &[("X-Cairn-Token", &self.token)], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.ask("POST", &format!("/api/1/{path}"), &[("X-Cairn-Token", &self.token)], body)
    }
}
