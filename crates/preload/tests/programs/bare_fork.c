// Children made by a system call. By number, through libc: as good as any. By an instruction of
// the program's own, of which nobody hears: one that executes a program is fine; one that uses
// managed memory gets SIGSEGV, never wrong bytes.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)100 << 20)
static unsigned char *memory;

static unsigned char want(size_t i) { return (i >> 12) % 250 + 1; }

static int right(void) {
    for (size_t i = 0; i < BYTES; i += 4096)
        if (memory[i] != want(i)) return 0;
    return 1;
}

static long unheard_fork(void) {
    long pid;
    __asm__ volatile("syscall" : "=a"(pid) : "a"(SYS_fork) : "rcx", "r11", "memory");
    return pid;
}

int main(void) {
    memory = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    for (size_t i = 0; i < BYTES; i += 4096) {
        for (int k = 0; k < 300; k++) memory[i + k] = rand();
        memory[i] = want(i);
    }
    int status = 0;
    // What a fork of libc's has write-protected is no hindrance.
    long pid = fork();
    if (pid == 0) _exit(0);
    waitpid(pid, &status, 0);
    unsigned char *last = memory + BYTES - 64 * 4096;
    for (size_t i = 0; i < 64; i++) last[i * 4096 + 1] = 7;
    pid = syscall(SYS_fork);
    if (pid == 0) {
        int sum = 0;
        for (size_t i = 0; i < 64; i++) sum += ++last[i * 4096 + 1];
        syscall(SYS_exit_group, sum == 64 * 8 ? 0 : 6);
    }
    waitpid(pid, &status, 0);
    if (status != 0) return printf("writing child: status %#x\n", status), 7;
    for (size_t i = 0; i < 64; i++)
        if (last[i * 4096 + 1] != 7) return puts("parent: a byte of the child's"), 8;
    pid = syscall(SYS_fork);
    if (pid == 0) syscall(SYS_exit_group, right() ? 0 : 5);
    waitpid(pid, &status, 0);
    if (status != 0) return printf("reading child: status %#x\n", status), 4;
    pid = unheard_fork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)0);
        syscall(SYS_exit_group, 9);
    }
    waitpid(pid, &status, 0);
    if (status != 0) return printf("exec: status %#x\n", status), 3;
    pid = unheard_fork();
    if (pid == 0) syscall(SYS_exit_group, right() ? 0 : 5);
    waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        return printf("touching child: status %#x\n", status), 4;
    if (!right()) return puts("parent: wrong byte"), 5;
    puts("bare forks right");
    return 0;
}
