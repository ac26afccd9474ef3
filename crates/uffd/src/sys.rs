//! The kernel's numbers and structures, written by hand from the interface documentation.
//!
//! Distribution headers lag behind the kernel by years (many still end before `UFFDIO_MOVE`),
//! so nothing is generated from installed headers; sizes and request numbers are asserted.

use libc::c_ulong;

/// `UFFD_API`: the only version of the interface there has ever been.
pub const UFFD_API: u64 = 0xAA;
/// Flag of `userfaultfd(2)` and `USERFAULTFD_IOC_NEW`: serve faults from user mode only.
pub const UFFD_USER_MODE_ONLY: i32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UffdioApi {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UffdioRange {
    pub start: u64,
    pub len: u64,
}

#[repr(C)]
pub struct UffdioRegister {
    pub range: UffdioRange,
    pub mode: u64,
    pub ioctls: u64,
}

/// `uffdio_copy` and `uffdio_move` have the same shape: two addresses, a length, a mode and the
/// field in which the kernel leaves either the bytes done or a negative error.
#[repr(C)]
pub struct UffdioTwo {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    pub progress: i64,
}

/// `uffdio_zeropage`, `uffdio_continue` and `uffdio_poison`: one range, otherwise as above.
#[repr(C)]
pub struct UffdioOne {
    pub range: UffdioRange,
    pub mode: u64,
    pub progress: i64,
}

#[repr(C)]
pub struct UffdioWriteprotect {
    pub range: UffdioRange,
    pub mode: u64,
}

/// `uffd_msg`. The union of the interface is kept as three words; `event.rs` gives them meaning.
#[repr(C)]
pub struct UffdMsg {
    pub event: u8,
    pub reserved1: u8,
    pub reserved2: u16,
    pub reserved3: u32,
    pub arg: [u64; 3],
}

pub const UFFD_EVENT_PAGEFAULT: u8 = 0x12;
pub const UFFD_EVENT_FORK: u8 = 0x13;
pub const UFFD_EVENT_REMAP: u8 = 0x14;
pub const UFFD_EVENT_REMOVE: u8 = 0x15;
pub const UFFD_EVENT_UNMAP: u8 = 0x16;

pub const UFFD_PAGEFAULT_FLAG_WRITE: u64 = 1 << 0;
pub const UFFD_PAGEFAULT_FLAG_WP: u64 = 1 << 1;
pub const UFFD_PAGEFAULT_FLAG_MINOR: u64 = 1 << 2;

#[repr(C)]
pub struct PmScanArg {
    pub size: u64,
    pub flags: u64,
    pub start: u64,
    pub end: u64,
    pub walk_end: u64,
    pub vec: u64,
    pub vec_len: u64,
    pub max_pages: u64,
    pub category_inverted: u64,
    pub category_mask: u64,
    pub category_anyof_mask: u64,
    pub return_mask: u64,
}

pub const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
pub const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;

/// The generic encoding of a request number: direction, size, type, number. Architectures with
/// another encoding (mips, powerpc, sparc, alpha) have no userfaultfd user of ours.
const fn request(dir: c_ulong, ty: u8, nr: u8, size: usize) -> c_ulong {
    (dir << 30) | ((size as c_ulong) << 16) | ((ty as c_ulong) << 8) | nr as c_ulong
}
const NONE: c_ulong = 0;
const READ: c_ulong = 2;
const READ_WRITE: c_ulong = 3;

const UFFDIO: u8 = 0xAA;
pub const USERFAULTFD_IOC_NEW: c_ulong = request(NONE, UFFDIO, 0x00, 0);
pub const UFFDIO_API: c_ulong = request(READ_WRITE, UFFDIO, 0x3F, size_of::<UffdioApi>());
pub const UFFDIO_REGISTER: c_ulong = request(READ_WRITE, UFFDIO, 0x00, size_of::<UffdioRegister>());
pub const UFFDIO_UNREGISTER: c_ulong = request(READ, UFFDIO, 0x01, size_of::<UffdioRange>());
pub const UFFDIO_WAKE: c_ulong = request(READ, UFFDIO, 0x02, size_of::<UffdioRange>());
pub const UFFDIO_COPY: c_ulong = request(READ_WRITE, UFFDIO, 0x03, size_of::<UffdioTwo>());
pub const UFFDIO_ZEROPAGE: c_ulong = request(READ_WRITE, UFFDIO, 0x04, size_of::<UffdioOne>());
pub const UFFDIO_MOVE: c_ulong = request(READ_WRITE, UFFDIO, 0x05, size_of::<UffdioTwo>());
pub const UFFDIO_WRITEPROTECT: c_ulong =
    request(READ_WRITE, UFFDIO, 0x06, size_of::<UffdioWriteprotect>());
pub const UFFDIO_CONTINUE: c_ulong = request(READ_WRITE, UFFDIO, 0x07, size_of::<UffdioOne>());
pub const UFFDIO_POISON: c_ulong = request(READ_WRITE, UFFDIO, 0x08, size_of::<UffdioOne>());
pub const PAGEMAP_SCAN: c_ulong = request(READ_WRITE, b'f', 16, size_of::<PmScanArg>());

const _: () = {
    assert!(size_of::<UffdMsg>() == 32);
    assert!(size_of::<PmScanArg>() == 96);
    assert!(USERFAULTFD_IOC_NEW == 0x0000_aa00);
    assert!(UFFDIO_API == 0xc018_aa3f);
    assert!(UFFDIO_REGISTER == 0xc020_aa00);
    assert!(UFFDIO_UNREGISTER == 0x8010_aa01);
    assert!(UFFDIO_WAKE == 0x8010_aa02);
    assert!(UFFDIO_COPY == 0xc028_aa03);
    assert!(UFFDIO_ZEROPAGE == 0xc020_aa04);
    assert!(UFFDIO_MOVE == 0xc028_aa05);
    assert!(UFFDIO_WRITEPROTECT == 0xc018_aa06);
    assert!(UFFDIO_CONTINUE == 0xc020_aa07);
    assert!(UFFDIO_POISON == 0xc020_aa08);
    assert!(PAGEMAP_SCAN == 0xc060_6610);
};
