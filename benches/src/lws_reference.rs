//! The peer: libwebsockets' own C code, loaded at run time from a shared library that the user
//! names.
//!
//! Nothing of it is part of cairn. `CAIRN_PEER_LWS_SO=/path/to/library.so` names a build of
//! libwebsockets' backtrace and base64 code; `benchmarks/README.md` lists the symbols. The
//! structures below restate its public header.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use cairn_format::AbsoluteAddress;

/// Names the shared library.
pub(crate) const VARIABLE: &str = "CAIRN_PEER_LWS_SO";

/// `lws_backtrace_info_t`.
#[repr(C)]
struct Info {
    addresses: [usize; 32],
    allocation_bytes: usize,
    depth: u8,
    skip_innermost: u8,
    skip_outermost: u8,
}

/// `lws_backtrace_comp_t`.
#[repr(C)]
struct Stream {
    bytes: *mut u8,
    position_bits: usize,
    length_bytes: usize,
}

type StreamInit = unsafe extern "C" fn(*mut Stream, *mut u8, usize);
type StreamPut = unsafe extern "C" fn(*mut Stream, usize, c_uint) -> c_int;
type Compress = unsafe extern "C" fn(*mut Info, *mut Stream) -> c_int;
type Parse = unsafe extern "C" fn(*mut Info, *const u8) -> c_int;
type Base64Encode = unsafe extern "C" fn(*const c_char, c_int, *mut c_char, c_int) -> c_int;
type Base64Decode = unsafe extern "C" fn(*const c_char, c_int, *mut c_char, c_int) -> c_int;

/// The functions of a loaded libwebsockets build. The library is never unloaded.
#[derive(Clone, Copy)]
pub(crate) struct LwsReference {
    stream_init: StreamInit,
    stream_put: StreamPut,
    compress: Compress,
    parse: Parse,
    base64_encode: Base64Encode,
    base64_decode: Base64Decode,
}

/// Content of one blob: the addresses, innermost first, and the allocation size.
pub(crate) struct Decoded {
    info: Info,
}

impl Decoded {
    pub(crate) fn new() -> Self {
        let info =
            Info { addresses: [0; 32], allocation_bytes: 0, depth: 0, skip_innermost: 0, skip_outermost: 0 };
        Self { info }
    }

    pub(crate) fn addresses(&self) -> &[usize] {
        self.info.addresses.get(..usize::from(self.info.depth)).unwrap_or_default()
    }

    pub(crate) fn allocation_bytes(&self) -> usize {
        self.info.allocation_bytes
    }
}

impl LwsReference {
    /// Returns the library that the environment names.
    ///
    /// # Errors
    ///
    /// A sentence with the reason why there is no peer.
    pub(crate) fn load() -> Result<Self, String> {
        let path = env::var(VARIABLE).map_err(|_| format!("{VARIABLE} is not set"))?;
        let c_path = CString::new(path.as_str()).map_err(|_| format!("{VARIABLE} holds a NUL byte"))?;
        // SAFETY: `c_path` is NUL-terminated. Loading runs the library's constructors: the user
        // named it for that.
        let library = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(format!("{path}: {}", dlopen_error()));
        }
        let symbol = |name: &CStr| symbol(library, name).map_err(|name| format!("{path}: no symbol {name}"));
        let stream_init = symbol(c"lws_backtrace_compression_stream_init")?;
        let stream_put = symbol(c"lws_backtrace_compression_stream")?;
        let compress = symbol(c"lws_backtrace_compress_backtrace")?;
        let parse = symbol(c"lws_alloc_metadata_parse")?;
        let base64_encode = symbol(c"lws_b64_encode_string")?;
        let base64_decode = symbol(c"lws_b64_decode_string_len")?;
        // SAFETY: each symbol is a function with the signature that libwebsockets' public header
        // gives this name.
        unsafe {
            Ok(Self {
                stream_init: transmute::<*mut c_void, StreamInit>(stream_init),
                stream_put: transmute::<*mut c_void, StreamPut>(stream_put),
                compress: transmute::<*mut c_void, Compress>(compress),
                parse: transmute::<*mut c_void, Parse>(parse),
                base64_encode: transmute::<*mut c_void, Base64Encode>(base64_encode),
                base64_decode: transmute::<*mut c_void, Base64Decode>(base64_decode),
            })
        }
    }

    /// Writes a whole blob (backtrace, size, length) to `blob`, in the steps of
    /// `lws_alloc_metadata_gen`. Answers the blob's length, or `None` when it does not fit.
    pub(crate) fn encode(
        &self,
        addresses: &[AbsoluteAddress],
        allocation_bytes: usize,
        blob: &mut [u8],
    ) -> Option<usize> {
        let mut info = Decoded::new().info;
        info.depth = u8::try_from(addresses.len()).ok().filter(|&depth| depth < 32)?;
        for (slot, &address) in info.addresses.iter_mut().zip(addresses) {
            *slot = usize::try_from(address.value()).ok()?;
        }
        let mut stream = Stream { bytes: null_mut(), position_bits: 0, length_bytes: 0 };
        let size_bits = (usize::BITS - allocation_bytes.leading_zeros()).max(1);
        // SAFETY: the stream writes only to `blob`, and has its length less one byte: on
        // overrun the C code clears one byte past what it was given. `info.depth` is below 32, the
        // number of its addresses.
        let overrun = unsafe {
            (self.stream_init)(&mut stream, blob.as_mut_ptr(), blob.len().checked_sub(1)?);
            (self.compress)(&mut info, &mut stream) != 0
                || (self.stream_put)(&mut stream, size_bits as usize, 6) != 0
                || (self.stream_put)(&mut stream, allocation_bytes, size_bits) != 0
        };
        let body = stream.position_bits.div_ceil(8);
        let length = body + 2;
        if overrun || length >= blob.len() {
            return None;
        }
        let length_field = u16::try_from(length).ok()?.to_be_bytes();
        blob.get_mut(body..length)?.copy_from_slice(&length_field);
        Some(length)
    }

    /// Reads `blob`, which must be one that [`encode`](Self::encode) made: the C code trusts what
    /// it reads.
    pub(crate) fn decode(&self, blob: &[u8], decoded: &mut Decoded) -> bool {
        // SAFETY: the pointer just past the blob, whose last two bytes give its length; a blob of
        // the encoder refers only backwards and holds fewer than 32 addresses.
        unsafe { (self.parse)(&mut decoded.info, blob.as_ptr_range().end) == 0 }
    }

    /// Writes `bytes` as padded base64 and a NUL; answers the number of characters.
    pub(crate) fn base64_encode(&self, bytes: &[u8], text: &mut [u8]) -> Option<usize> {
        let (input_length, room) = (c_int::try_from(bytes.len()).ok()?, c_int::try_from(text.len()).ok()?);
        // SAFETY: both lengths are those of the slices.
        let length = unsafe {
            (self.base64_encode)(bytes.as_ptr().cast(), input_length, text.as_mut_ptr().cast(), room)
        };
        usize::try_from(length).ok()
    }

    /// Reads base64 `text`; answers the number of bytes.
    pub(crate) fn base64_decode(&self, text: &[u8], bytes: &mut [u8]) -> Option<usize> {
        let (input_length, room) = (c_int::try_from(text.len()).ok()?, c_int::try_from(bytes.len()).ok()?);
        // SAFETY: both lengths are those of the slices.
        let length = unsafe {
            (self.base64_decode)(text.as_ptr().cast(), input_length, bytes.as_mut_ptr().cast(), room)
        };
        usize::try_from(length).ok()
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, &str> {
    // SAFETY: `library` came from `dlopen` and is never closed; `name` is NUL-terminated.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    if address.is_null() { Err(name.to_str().unwrap_or("?")) } else { Ok(address) }
}

fn dlopen_error() -> String {
    // SAFETY: `dlerror` answers NULL or a NUL-terminated text that is valid until the next call on
    // this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "cannot be loaded".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}
