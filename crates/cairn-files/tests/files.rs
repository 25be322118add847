//! Attacks of other users on files, as far as one process can show them: links, FIFOs and
//! directories that belong to them. Those need root, which gives them away.

#![cfg(not(windows))]
#![allow(clippy::print_stdout, reason = "tests say what they have skipped")]

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use cairn_files::{Directory, Existing, NewFile, Output, open_output, unnamed_file, unnamed_file_in};

/// Another user: nobody.
const OTHER: u32 = 65534;

/// A directory for one test, below one that every user's files may lie in.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cairn-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn directory(&self, name: &str, mode: u32, owner: Option<u32>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        owner.into_iter().for_each(|owner| chown(&path, Some(owner), None).unwrap());
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let is_root = cairn_files::effective_user() == 0;
    if !is_root {
        println!("skipped: only root can give files to another user");
    }
    is_root
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

fn replaced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match open_output(path, true)? {
        Output::New(mut file) => {
            file.file_mut().write_all(bytes)?;
            file.commit(Existing::Replace)
        }
        Output::Stream(mut file) => file.write_all(bytes),
        Output::Stdout => panic!("not standard output"),
    }
}

/// Before there was this crate, files were made with mode 0644 and under a name that all could
/// guess.
#[test]
fn new_file_is_private_and_has_no_name_until_complete() {
    let scratch = Scratch::new("new");
    let path = scratch.at("out");
    let mut file = NewFile::create(&path).unwrap();
    file.file_mut().write_all(b"text").unwrap();
    assert_eq!(file.file().metadata().unwrap().mode() & 0o777, 0o600);
    assert!(!path.exists());
    file.commit(Existing::Refuse).unwrap();
    assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"text".to_vec(), 0o600));

    let second = NewFile::create(&path).unwrap();
    assert_eq!(second.commit(Existing::Refuse).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    let third = NewFile::create(&path).unwrap();
    third.commit(Existing::Replace).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    drop(NewFile::create(&scratch.at("dropped")).unwrap());
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "something is left behind");
}

#[test]
fn unnamed_file_is_private_and_in_no_directory() {
    let file = unnamed_file().unwrap();
    let facts = file.metadata().unwrap();
    assert_eq!((facts.mode() & 0o777, facts.nlink()), (0o600, 0));
}

/// A name would change the directory, and a process that is killed would leave it behind.
#[test]
fn unnamed_file_is_never_seen_in_its_directory() {
    let scratch = Scratch::new("unseen");
    let changed = || {
        let facts = fs::metadata(&scratch.0).unwrap();
        (facts.ctime(), facts.ctime_nsec())
    };
    let before = changed();
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(unnamed_file_in(&scratch.0).unwrap());
    assert_eq!(changed(), before);
    let missing = unnamed_file_in(&scratch.at("missing")).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

#[test]
fn output_is_written_into_devices_and_fifos() {
    let scratch = Scratch::new("devices");
    assert!(matches!(open_output("/dev/null".as_ref(), false).unwrap(), Output::Stream(_)));
    replaced("/dev/null".as_ref(), b"text").unwrap();
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());

    let path = scratch.at("fifo");
    fifo(&path);
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut text = String::new();
            File::open(path).unwrap().read_to_string(&mut text).unwrap();
            text
        }
    });
    let Output::Stream(mut file) = open_output(&path, false).unwrap() else { panic!("it is a FIFO") };
    file.write_all(b"through").unwrap();
    drop(file);
    assert_eq!(reader.join().unwrap(), "through");
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
}

#[test]
fn output_follows_own_links_only_when_it_may_replace() {
    let scratch = Scratch::new("own-link");
    let (target, link) = (scratch.at("target"), scratch.at("link"));
    fs::write(&target, "before").unwrap();
    symlink("target", &link).unwrap();
    assert_eq!(open_output(&link, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    replaced(&link, b"after").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&target).unwrap(), b"after");

    fs::remove_file(&target).unwrap();
    assert_eq!(open_output(&link, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    replaced(&link, b"made").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"made");

    let null = scratch.at("null");
    symlink("/dev/null", &null).unwrap();
    assert!(matches!(open_output(&null, false).unwrap(), Output::Stream(_)));
    symlink("ring", scratch.at("ring")).unwrap();
    assert!(open_output(&scratch.at("ring"), true).is_err());
}

/// Each of these was followed, or replaced by a rename.
#[test]
fn output_refuses_links_and_targets_of_other_users() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("foreign");
    let (victim, shared) = (scratch.at("victim"), scratch.directory("shared", 0o1777, None));
    fs::write(&victim, "keep").unwrap();
    let refused = |path: &Path| {
        let error = replaced(path, b"evil").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert_eq!(fs::read(&victim).unwrap(), b"keep");
    };
    // A link of another user in a directory like /tmp.
    let planted = shared.join("planted");
    symlink(&victim, &planted).unwrap();
    lchown(&planted, Some(OTHER), None).unwrap();
    refused(&planted);
    // Our own link in a directory that another user can rename it in.
    let theirs = scratch.directory("theirs", 0o755, Some(OTHER));
    symlink(&victim, theirs.join("own")).unwrap();
    refused(&theirs.join("own"));
    let open = scratch.directory("open", 0o777, None);
    symlink(&victim, open.join("own")).unwrap();
    refused(&open.join("own"));
    // A directory on the way that is a link of another user's.
    symlink(&scratch.0, theirs.join("way")).unwrap();
    refused(&theirs.join("way/victim"));
    assert!(Directory::open(&theirs.join("way")).is_err());
    // Our own link to what is another user's.
    let foreign = theirs.join("file");
    fs::write(&foreign, "theirs").unwrap();
    chown(&foreign, Some(OTHER), None).unwrap();
    symlink(&foreign, scratch.at("to-theirs")).unwrap();
    refused(&scratch.at("to-theirs"));
    assert_eq!(fs::read(&foreign).unwrap(), b"theirs");
    // A FIFO that another user reads.
    let pipe = shared.join("pipe");
    fifo(&pipe);
    chown(&pipe, Some(OTHER), None).unwrap();
    refused(&pipe);
    // A new file in another user's directory harms nobody.
    replaced(&theirs.join("new"), b"text").unwrap();
    assert_eq!(mode(&theirs.join("new")), 0o600);
}

#[test]
fn private_directory_is_made_for_its_user_alone() {
    let scratch = Scratch::new("private");
    let path = scratch.at("a/b/c");
    assert!(Directory::private_if_there(&path).is_err());
    let directory = Directory::private(&path).unwrap();
    assert_eq!((mode(&scratch.at("a")), mode(&path)), (0o700, 0o700));
    assert_eq!(directory.path(), fs::canonicalize(&path).unwrap());
    symlink("a", scratch.at("link")).unwrap();
    let linked = Directory::private(&scratch.at("link/b/c")).unwrap();
    assert_eq!(linked.path(), directory.path(), "without links");
    directory.create_new("file".as_ref()).unwrap();
    assert_eq!(directory.names().unwrap(), ["file"]);
    assert!(directory.read_own("file".as_ref()).is_ok());
    symlink("file", path.join("link")).unwrap();
    assert!(directory.read("link".as_ref()).is_err() && directory.modify("link".as_ref()).is_err());

    let open = scratch.directory("open", 0o777, None);
    let error = Directory::private(&open.join("cache")).unwrap_err();
    assert!(error.to_string().contains("other users may write to"), "{error}");
    assert!(Directory::private(&open).is_err());
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
}

/// Caches in such directories were used, and files were made in them.
#[test]
fn private_directory_is_refused_below_another_users() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("private-foreign");
    let home = scratch.directory("home", 0o700, Some(OTHER));
    let error = Directory::private(&home.join(".cache/cairn")).unwrap_err();
    assert!(error.to_string().contains("belongs to another user (65534)"), "{error}");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
    assert!(cairn_files::is_distrust(&error));
    let missing = Directory::open(&scratch.at("missing")).unwrap_err();
    assert!(!cairn_files::is_distrust(&missing));
    // Our own directory in theirs can be swapped for another one.
    fs::create_dir_all(home.join("own")).unwrap();
    assert!(Directory::private_if_there(&home.join("own")).is_err());

    let own = Directory::private(&scratch.at("own")).unwrap();
    fs::write(scratch.at("own/file"), "text").unwrap();
    chown(scratch.at("own/file"), Some(OTHER), None).unwrap();
    assert!(own.read_own("file".as_ref()).is_err());
    assert!(own.read("file".as_ref()).is_ok());
}
