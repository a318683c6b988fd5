//! A BPF array map in our memory: read and written without system calls.
//!
//! Any thread may read. All access is by relaxed atomics, because the kernel's CPUs write at the same time; a word is read
//! whole, but two words are not one moment.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// The mapping; unmapped when dropped.
#[derive(Debug)]
pub(super) struct MappedArray {
    at: NonNull<u8>,
    bytes: usize,
    stride: usize,
}

// SAFETY: the memory is shared with the kernel and accessed by atomics only, whichever thread does it; the pointer is
// valid until the drop, which has the only owner.
unsafe impl Send for MappedArray {}
// SAFETY: as above.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps an array map (made with BPF_F_MMAPABLE) of `entries` values of `value_bytes`.
    ///
    /// # Errors
    /// mmap failed.
    pub(super) fn new(map: BorrowedFd<'_>, value_bytes: usize, entries: usize) -> io::Result<MappedArray> {
        // The kernel keeps values 8 bytes apart at least (array_map_alloc).
        let stride = value_bytes.next_multiple_of(8);
        let bytes = (stride * entries).next_multiple_of(rustix::param::page_size());
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping at an address that the kernel chooses; `map` is open during the call.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, map.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::EFAULT))?;
        Ok(MappedArray { at, bytes, stride })
    }

    fn offset<T>(&self, entry: usize, offset: usize) -> NonNull<T> {
        let start = entry * self.stride + offset;
        assert!(offset + size_of::<T>() <= self.stride && start + size_of::<T>() <= self.bytes, "inside the map");
        assert!(start.is_multiple_of(align_of::<T>()), "aligned as the BPF structure is");
        // SAFETY: within the mapping, by the first assertion.
        unsafe { self.at.add(start) }.cast()
    }

    fn word64(&self, entry: usize, offset: usize) -> &AtomicU64 {
        // SAFETY: in bounds and aligned by `offset`; the mapping outlives the borrow; all access to it is atomic on our side
        // and by whole words on the kernel's.
        unsafe { self.offset::<AtomicU64>(entry, offset).as_ref() }
    }

    fn word32(&self, entry: usize, offset: usize) -> &AtomicU32 {
        // SAFETY: as for `word64`.
        unsafe { self.offset::<AtomicU32>(entry, offset).as_ref() }
    }

    /// The 8-byte word at `offset` of an entry.
    pub(super) fn get(&self, entry: usize, offset: usize) -> u64 {
        self.word64(entry, offset).load(Ordering::Relaxed)
    }

    /// Sets an 8-byte word.
    pub(super) fn set(&self, entry: usize, offset: usize, value: u64) {
        self.word64(entry, offset).store(value, Ordering::Relaxed);
    }

    /// Sets a 4-byte word.
    pub(super) fn set32(&self, entry: usize, offset: usize, value: u32) {
        self.word32(entry, offset).store(value, Ordering::Relaxed);
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; no borrow of it is left.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}
