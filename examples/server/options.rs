//! The command line.

use std::net::SocketAddr;

pub(crate) const USAGE: &str = "usage: server [--listen ADDRESS:PORT] [--redis redis://ADDRESS:PORT]";

pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) redis: Option<String>,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { listen: SocketAddr::from(([127, 0, 0, 1], 3000)), redis: None };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--listen" => {
                    let value = arguments.next().ok_or("--listen needs an address and port, such as 127.0.0.1:8080")?;
                    let address = value.parse();
                    options.listen = address.map_err(|_| {
                        format!("{value:?} is not an address and port: write one such as 127.0.0.1:8080")
                    })?;
                }
                "--redis" => {
                    let url = arguments.next().ok_or("--redis needs a URL, such as redis://127.0.0.1:6379")?;
                    options.redis = Some(url);
                }
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(options)
    }
}
