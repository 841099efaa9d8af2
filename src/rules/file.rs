//! Reads rules files.

use std::fs::File;
#[cfg(unix)]
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::problem::RulesError;
use super::yaml;

/// Reads a regular file. Does not block on pipes, and does not read devices.
pub(super) fn read(file: &Arc<Path>) -> Result<String, RulesError> {
    let read = || {
        let open = open(file)?;
        // The metadata of the open file: the path may refer to another one by now.
        let kind = open.metadata()?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() { "a folder" } else { "a pipe or a device" };
            return Err(io::Error::other(format!("it is {what}: use a regular file, or a link to one")));
        }
        // One byte more than the maximum, because the file may have grown.
        let mut text = String::new();
        open.take(yaml::MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    read().map_err(|error| RulesError::for_file(Some(file.clone()), format!("the file can't be read: {error}")))
}

/// Opens a file without blocking, as opening a pipe would do until it has a writer.
#[cfg(unix)]
fn open(file: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(file)
}

#[cfg(not(unix))]
fn open(file: &Path) -> io::Result<File> {
    File::open(file)
}
