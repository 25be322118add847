//! Opens the user's browser.
//!
//! The arguments of a command are seen by every user of a machine, and the address holds a token.
//! So the browser is given a file that only its user reads, and that leads to the address.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cairn_files::Directory;

/// Opens a file with the program that the user has chosen for its kind.
const DESKTOP: &str = if cfg!(windows) { "explorer.exe" } else { "xdg-open" };

/// The file; gone with this.
pub(super) struct Opened {
    directory: PathBuf,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Has the browser show an address: the one that `BROWSER` names, or the desktop's.
pub(super) fn open(url: &str) -> io::Result<Opened> {
    let opened = lead_to(url)?;
    let file = opened.directory.join("view.html");
    // A list, as others read it; the first one that can be started is it.
    let wanted = std::env::var_os("BROWSER").unwrap_or_default();
    let mut programs: Vec<PathBuf> =
        std::env::split_paths(&wanted).filter(|program| !program.as_os_str().is_empty()).collect();
    programs.push(DESKTOP.into());
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for program in programs {
        let mut command = Command::new(&program);
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(mut browser) => {
                // Waits for it, so that it does not stay as a zombie.
                std::thread::Builder::new().spawn(move || drop(browser.wait()))?;
                return Ok(opened);
            }
            Err(error) => failure = io::Error::new(error.kind(), format!("{}: {error}", program.display())),
        }
    }
    Err(failure)
}

fn lead_to(url: &str) -> io::Result<Opened> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let base = base.unwrap_or_else(std::env::temp_dir);
    let name = format!("cairn-view-{}", std::process::id());
    // Fails when it exists: then it belongs to another process.
    let made = Directory::open(&base)?.make(name.as_ref())?;
    let opened = Opened { directory: base.join(name) };
    let mut file = made.create_new("view.html".as_ref())?;
    write!(
        file,
        "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\">\n<title>cairn</title>\n<a href=\"{url}\">cairn view</a>\n"
    )?;
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_in_a_file_for_its_user_alone() {
        let opened = lead_to("http://127.0.0.1:1/t0ken/").unwrap();
        let file = opened.directory.join("view.html");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&opened.directory), mode(&file)), (0o700, 0o600));
        }
        assert!(fs::read_to_string(&file).unwrap().contains("url=http://127.0.0.1:1/t0ken/\""));
        let directory = opened.directory.clone();
        drop(opened);
        assert!(!directory.exists());
    }
}
