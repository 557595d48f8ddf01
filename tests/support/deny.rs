//! Takes system calls away from the calling thread, and from those that it starts, as a container's filter does.
//!
//! In: calls and the error number that each is to give. Out: a filter that cannot be taken off: only for a process that
//! was started for it.

/// A call that is to fail.
pub(crate) struct Denied {
    /// Its number.
    pub(crate) call: libc::c_long,
    /// The error that the caller sees.
    pub(crate) errno: i32,
}

/// Installs a filter that denies these calls and allows all others.
pub(crate) fn deny(denied: &[Denied]) {
    // A filter is a program over `struct seccomp_data`, whose first word is the call's number.
    let statement = |code: u32, value: u32| libc::sock_filter {
        code: u16::try_from(code).expect("an opcode of 16 bits"),
        jt: 0,
        jf: 0,
        k: value,
    };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for Denied { call, errno } in denied {
        let number = u32::try_from(*call).expect("a call's number");
        // Not this call: over the next statement.
        program.push(libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number)
        });
        let errno = u32::try_from(*errno).expect("an error number");
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a short program"),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the option takes numbers only.
    let rc = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(rc, 0, "no_new_privs: {}", std::io::Error::last_os_error());
    // SAFETY: the program lives until the call returns, and the kernel copies it.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(rc, 0, "seccomp: {}", std::io::Error::last_os_error());
}

/// Whether this process may set such a limit of locked memory. A root without CAP_SYS_RESOURCE may only lower it.
pub(crate) fn may_lock(bytes: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure that it is given, which is ours.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    rc == 0 && limit.rlim_max >= bytes
}

/// Makes the process an ordinary user's, who may lock `locked_bytes` of memory. Needs root.
pub(crate) fn become_nobody(locked_bytes: u64) {
    let limit = libc::rlimit { rlim_cur: locked_bytes, rlim_max: locked_bytes };
    // SAFETY: the structure is ours and is only read.
    let rc = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    assert_eq!(rc, 0, "setrlimit: {}", std::io::Error::last_os_error());
    // SAFETY: takes a number; changes all threads of this process, which was started for it.
    let rc = unsafe { libc::setgid(65_534) };
    assert_eq!(rc, 0, "setgid: {}", std::io::Error::last_os_error());
    // SAFETY: as above.
    let rc = unsafe { libc::setuid(65_534) };
    assert_eq!(rc, 0, "setuid: {}", std::io::Error::last_os_error());
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}
