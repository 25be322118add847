//! `cairn.exe` on a console of Windows: what it writes is shown in every script.

#![cfg(windows)]
#![allow(unsafe_code, reason = "pseudo consoles have no safe interface in the standard library")]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::windows::ffi::OsStrExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Console::{COORD, ClosePseudoConsole, CreatePseudoConsole, HPCON};
use windows_sys::Win32::System::Pipes::CreatePipe;
use windows_sys::Win32::System::Threading::{
    CreateProcessW, EXTENDED_STARTUPINFO_PRESENT, GetExitCodeProcess, InitializeProcThreadAttributeList,
    PROC_THREAD_ATTRIBUTE_PSEUDOCONSOLE, PROCESS_INFORMATION, STARTUPINFOEXW, STARTUPINFOW,
    UpdateProcThreadAttribute, WaitForSingleObject,
};

/// Runs a command line on a new console; returns its exit code and what the console shows.
fn on_console(command_line: &str) -> (u32, String) {
    const WAIT_MILLISECONDS: u32 = 60_000;
    let pipe = || {
        let mut ends: [HANDLE; 2] = [null_mut(); 2];
        let [read, write] = &mut ends;
        // SAFETY: both places are ours.
        assert_ne!(unsafe { CreatePipe(read, write, null(), 0) }, 0);
        // SAFETY: the handles are new, and nobody else closes them.
        ends.map(|end| unsafe { OwnedHandle::from_raw_handle(end) })
    };
    let ([input, _keyboard], [screen, output]) = (pipe(), pipe());
    let mut console: HPCON = 0;
    let size = COORD { X: 120, Y: 30 };
    // SAFETY: the handles are open, and the place for the result is ours.
    let made = unsafe {
        CreatePseudoConsole(size, input.as_raw_handle(), output.as_raw_handle(), 0, &raw mut console)
    };
    assert_eq!(made, 0);
    drop((input, output));
    // A console waits while its pipe is full.
    let shown = std::thread::spawn(move || {
        let mut shown = Vec::new();
        File::from(screen).read_to_end(&mut shown).map(|_| shown)
    });

    // One attribute takes less.
    let mut attributes = [0_usize; 64];
    let mut size = size_of_val(&attributes);
    let attributes = attributes.as_mut_ptr().cast();
    // SAFETY: the list has the stated size, and outlives the start of the process.
    unsafe {
        assert_ne!(InitializeProcThreadAttributeList(attributes, 1, 0, &raw mut size), 0);
        let attribute = PROC_THREAD_ATTRIBUTE_PSEUDOCONSOLE as usize;
        let updated = UpdateProcThreadAttribute(
            attributes,
            0,
            attribute,
            console as *const _,
            size_of::<HPCON>(),
            null_mut(),
            null(),
        );
        assert_ne!(updated, 0);
    }
    let start = STARTUPINFOEXW {
        StartupInfo: STARTUPINFOW {
            cb: u32::try_from(size_of::<STARTUPINFOEXW>()).unwrap(),
            ..Default::default()
        },
        lpAttributeList: attributes,
    };
    let mut line: Vec<u16> = OsString::from(command_line).encode_wide().chain([0]).collect();
    let mut process = PROCESS_INFORMATION::default();
    let mut code = 0;
    // SAFETY: the line ends with a zero; the other pointers are null or to values of ours.
    unsafe {
        let started = CreateProcessW(
            null(),
            line.as_mut_ptr(),
            null(),
            null(),
            0,
            EXTENDED_STARTUPINFO_PRESENT,
            null(),
            null(),
            &raw const start.StartupInfo,
            &raw mut process,
        );
        assert_ne!(started, 0, "{command_line}: {}", std::io::Error::last_os_error());
        assert_eq!(WaitForSingleObject(process.hProcess, WAIT_MILLISECONDS), WAIT_OBJECT_0);
        assert_ne!(GetExitCodeProcess(process.hProcess, &raw mut code), 0);
        CloseHandle(process.hProcess);
        CloseHandle(process.hThread);
        // It writes the rest, and closes its end of the pipe.
        ClosePseudoConsole(console);
    }
    let shown = shown.join().unwrap().unwrap();
    (code, String::from_utf8(shown).unwrap())
}

/// Runs on the console: wine gives a process the console, but not as its standard output.
#[test]
#[ignore = "a part of console_shows_every_script"]
fn play_on_console() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/windows-host");
    let console = || OpenOptions::new().read(true).write(true).open("CONOUT$").unwrap();
    let mut play = Command::new(env!("CARGO_BIN_EXE_cairn"));
    play.args(["play", "--stacks", "--symbols"])
        .arg(fixtures.join("dwarf"))
        .arg(fixtures.join("dwarf.cairn"));
    let status = play.stdin(Stdio::null()).stdout(console()).stderr(console()).status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn console_shows_every_script() {
    let this = std::env::current_exe().unwrap();
    let (code, shown) = on_console(&format!("\"{}\" --ignored --exact play_on_console", this.display()));
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("foo测试.cpp"), "{shown}");
}
