/* Recorder of a process' reads: a library that is loaded before all others (LD_PRELOAD).

   Functions of the C library that open, read, map and close files are passed on unchanged, and each
   read is noted with file, offset, length and time in a file of $TREEHAMMER_TRACE. The notes lie in
   shared memory, so that nothing is lost when a process is killed or replaces its program. Reads of
   C streams do not pass through read(): their table of functions is changed where it has the expected
   entry. Nothing is allocated while a program reads. */

#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x3130454341525448ull /* "HTRACE01" */
#define MAX_EVENTS (4u << 20)
#define MAX_FILES 16384u
#define MAX_FDS 65536
#define PATH_BYTES 464

enum { REGULAR = 1, INTERNET = 2, STREAM = 3 }; /* pipes, terminals, devices but /dev/null: only their sum */
enum { STREAMS_SEEN = 1, RING_USED = 2 };
enum { FIRST_FILES = 23, FIRST_EVENTS = 102, MAPPED_EVENTS = 1 << 16 }; /* pages: four, one, whole ones */

/* The layout of the notes, header and files in one file, and events in another; recorder.py reads them.
   Both grow as they fill up, since batch systems count what a job's files could hold. */
struct Header {
   uint64_t magic;
   uint32_t pid, parent, max_files, max_events;
   _Atomic uint64_t events; /* may exceed max_events: the others are only in the sums of their file */
   _Atomic uint32_t files, lost_files;
   _Atomic uint32_t flags, libraries; /* the loader reads the start of each */
   _Atomic uint64_t uncounted; /* bytes that are not in the kernel's account: received, or spliced */
   char program[4096 - 56];
};

struct File {
   _Atomic uint64_t opens, calls, bytes, nanoseconds, maps, mapped_bytes;
   uint64_t size;
   uint32_t kind, unused;
   char path[PATH_BYTES];
};

struct Event {
   uint32_t file, unused;
   uint64_t start, nanoseconds;
   int64_t offset;
   uint64_t length;
};

static struct Header *header;
static struct File *files;
static struct Event *events;
static char log_path[4096 - 8], folder[4096 - 64], recording[4096];
static _Atomic uint32_t file_room, event_room;
static struct rlimit file_limit; /* ulimit -f: a log that grows beyond it ends the program */
static int is_ready, is_broken, are_streams_seen, names_recordings;
/* Number of a file plus one in the lower half, the count of forks in the upper one; 0 for unknown. */
static _Atomic uint32_t file_of_fd[MAX_FDS];
static uint32_t slots[2 * MAX_FILES], forks = 1, libraries_before;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
/* A handler of a signal may interrupt a note: its own reads are not noted. */
static __thread int is_busy __attribute__((tls_model("initial-exec")));
/* Blocks that ROOT wants of the reads within a call of TFile::ReadBuffers, which also fill gaps. */
static __thread struct Wanted {
   const long long *positions;
   const int *lengths;
   int count;
} wanted __attribute__((tls_model("initial-exec")));

#define IGNORED 0xffffu
#define WANTED UINT64_MAX /* in place of a duration */
#define UNCOUNTED -2 /* in place of an offset: the descriptor's own, and not in the kernel's account */
#define UNCOUNTED_AT(offset) (UNCOUNTED - 1 - (offset))
#define UNLESS_PEEKED(fd) (flags & MSG_PEEK ? -1 : fd) /* bytes that are looked at stay, and are read again */

/* Declare and find the function of the C library that a function of the same name passes calls on to. */
#define REAL(result, name, parameters)                                                                      \
   static result(*real) parameters;                                                                         \
   if (!real)                                                                                               \
      *(void **)&real = dlsym(RTLD_NEXT, #name)

#if defined __x86_64__ && defined __GLIBC__ /* symbols of any age: containers may have an older C library */
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5\n.symver dlopen, dlopen@GLIBC_2.2.5\n.symver dladdr, dladdr@GLIBC_2.2.5");
#endif

/* The entry of a table of stream functions, and its original. */
static ssize_t (*stream_read)(FILE *, void *, ssize_t);
static int (*stream_close)(FILE *);
static int begin(void);

static uint64_t now(void)
{
   struct timespec t;
   clock_gettime(CLOCK_MONOTONIC, &t);
   return 1000000000ull * t.tv_sec + t.tv_nsec;
}

static int open_part(const char *suffix, int flags)
{
   char path[4096];
   snprintf(path, sizeof path, "%s.%s", log_path, suffix);
   return syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600);
}

/* Map a part of the log, which has room for its first bytes; a full disk fails here and not at a write. */
static void *map_part(int fd, size_t first, size_t size)
{
   void *memory = MAP_FAILED;
   if (first <= file_limit.rlim_cur && posix_fallocate(fd, 0, first) == 0)
      memory = (void *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
   syscall(SYS_close, fd);
   return memory;
}

/* Double the room of a part of the log, up to a number of entries; False if it cannot grow. */
static int extend_part(const char *suffix, _Atomic uint32_t *room, uint32_t most, size_t before, size_t entry)
{
   uint32_t wider = 2 * *room < most ? 2 * *room : most;
   int fd = wider > *room ? open_part(suffix, 0) : -1;
   int error = before + wider * entry > file_limit.rlim_cur || posix_fallocate(fd, 0, before + wider * entry);
   syscall(SYS_close, fd);
   if (!error)
      *room = wider;
   return !error;
}

/* Open the log of this process; False if there is none. Called with is_busy set. */
static int open_log(void)
{
   if (header || is_broken || !*folder)
      return header != NULL;
   is_broken = 1;
   int fd = -1;
   for (int number = 0; fd < 0 && number < 100000; number++) {
      if (snprintf(log_path, sizeof log_path, "%s/%d-%d", folder, getpid(), number) >= (int)sizeof log_path)
         return 0;
      fd = open_part("trace", O_EXCL);
      if (fd < 0 && errno != EEXIST)
         return 0;
   }
   getrlimit(RLIMIT_FSIZE, &file_limit);
   file_room = FIRST_FILES;
   event_room = FIRST_EVENTS;
   size_t table = sizeof(struct Header) + MAX_FILES * sizeof(struct File);
   void *memory = map_part(fd, sizeof(struct Header) + FIRST_FILES * sizeof(struct File), table);
   events = map_part(open_part("events", O_EXCL), FIRST_EVENTS * sizeof(struct Event), MAX_EVENTS * sizeof(struct Event));
   if (memory == MAP_FAILED || events == MAP_FAILED)
      return 0;
   struct Header *log = memory;
   *log = (struct Header){MAGIC, getpid(), getppid(), MAX_FILES, MAX_EVENTS};
   log->flags = are_streams_seen ? STREAMS_SEEN : 0;
   readlink("/proc/self/exe", log->program, sizeof log->program - 1);
   files = (struct File *)(log + 1);
   header = log;
   return 1;
}

/* Each process has a recording of its XRootD client of its own: the client's recorder replaces the file. */
static void name_recording(void)
{
   REAL(int, setenv, (const char *, const char *, int));
   snprintf(recording, sizeof recording, "%s/%d-%llu.csv", folder, getpid(), (unsigned long long)now());
   if (names_recordings)
      real("XRD_RECORDERPATH", recording, 1);
}

/* A client that was loaded before a fork has its parent's name. */
static const char *find_path(const char *path)
{
   return names_recordings && path && !strncmp(path, folder, strlen(folder)) && strstr(path, ".csv") ? recording : path;
}

static int count_libraries(struct dl_phdr_info *info, size_t size, void *count)
{
   *(uint32_t *)count = info->dlpi_adds;
   return 1;
}

static void note_libraries(void)
{
   uint32_t count = 0;
   dl_iterate_phdr(count_libraries, &count);
   if (header)
      header->libraries = count - libraries_before;
}

/* A child has a log of its own, which it opens at its first read: most replace their program. */
static void forget_parent(void)
{
   header = NULL;
   is_broken = is_busy = 0;
   forks++;
   dl_iterate_phdr(count_libraries, &libraries_before);
   memset(slots, 0, sizeof slots);
   pthread_mutex_init(&table_lock, NULL);
   name_recording();
}

static int describe_fd(int fd, struct stat *status, char *path)
{
   if (syscall(SYS_fstat, fd, status) != 0)
      return 0;
   if (S_ISSOCK(status->st_mode)) {
      union { struct sockaddr any; struct sockaddr_in v4; struct sockaddr_in6 v6; } peer = {0};
      socklen_t length = sizeof peer;
      char text[INET6_ADDRSTRLEN];
      getpeername(fd, &peer.any, &length);
      int family = peer.any.sa_family, is_v6 = family == AF_INET6; /* both have the port in one place */
      if (!is_v6 && family != AF_INET)
         return strcpy(path, "stream:"), STREAM;
      inet_ntop(family, is_v6 ? (void *)&peer.v6.sin6_addr : (void *)&peer.v4.sin_addr, text, sizeof text);
      snprintf(path, PATH_BYTES, is_v6 ? "tcp://[%s]:%d" : "tcp://%s:%d", text, ntohs(peer.v4.sin_port));
      return INTERNET;
   }
   char link[64];
   snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
   ssize_t length = readlink(link, path, PATH_BYTES - 1);
   if (length <= 0)
      return 0;
   path[length] = 0;
   if (length == PATH_BYTES - 1) /* cut: tell files of one folder apart */
      snprintf(path + PATH_BYTES - 32, 32, "... (inode %llu)", (unsigned long long)status->st_ino);
   if (S_ISREG(status->st_mode))
      return REGULAR;
   if (strstr(path, "[io_uring]"))
      header->flags |= RING_USED;
   return S_ISDIR(status->st_mode) || !strcmp(path, "/dev/null") ? 0 : (strcpy(path, "stream:"), STREAM);
}

/* Find or add the entry of a path; IGNORED if the table is full. */
static uint32_t enter_path(const char *path, int kind, const struct stat *status)
{
   uint64_t hash = 1469598103934665603ull;
   for (const char *c = path; *c; c++)
      hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
   pthread_mutex_lock(&table_lock);
   uint32_t slot = hash % (2 * MAX_FILES), number = IGNORED;
   while (slots[slot] && strcmp(files[slots[slot] - 1].path, path) != 0)
      slot = (slot + 1) % (2 * MAX_FILES);
   if (slots[slot])
      number = slots[slot] - 1;
   else if (header->files < file_room ||
            extend_part("trace", &file_room, MAX_FILES, sizeof(struct Header), sizeof(struct File))) {
      number = header->files;
      strcpy(files[number].path, path);
      files[number].kind = kind;
      slots[slot] = number + 1;
      header->files++;
   } else
      header->lost_files++;
   if (number != IGNORED && kind == REGULAR)
      files[number].size = status->st_size;
   pthread_mutex_unlock(&table_lock);
   return number;
}

/* Number of the file behind a descriptor; IGNORED if it is not recorded. Called with is_busy set. */
static uint32_t find_file(int fd)
{
   if (fd < 0 || fd >= MAX_FDS || !open_log())
      return IGNORED;
   uint32_t entry = atomic_load_explicit(&file_of_fd[fd], memory_order_relaxed);
   if (entry && entry >> 16 == (forks & 0xffff))
      return (entry & 0xffff) == IGNORED ? IGNORED : (entry & 0xffff) - 1;
   struct stat status;
   char path[PATH_BYTES];
   int kind = describe_fd(fd, &status, path);
   uint32_t number = kind ? enter_path(path, kind, &status) : IGNORED;
   entry = kind ? forks << 16 | (number == IGNORED ? IGNORED : number + 1) : 0; /* directories close unseen */
   atomic_store_explicit(&file_of_fd[fd], entry, memory_order_relaxed);
   return number;
}

static void forget_fd(int fd)
{
   if (fd >= 0 && fd < MAX_FDS)
      atomic_store_explicit(&file_of_fd[fd], 0, memory_order_relaxed);
}

/* Note that a descriptor was opened, or that so many bytes of its file were mapped. */
static void note_use(int fd, int is_opened, size_t mapped)
{
   if (fd < 0 || is_busy || !begin())
      return;
   int error = errno;
   is_busy = 1;
   if (is_opened)
      forget_fd(fd);
   uint32_t number = find_file(fd);
   if (number != IGNORED) {
      files[number].opens += is_opened;
      files[number].maps += !is_opened;
      files[number].mapped_bytes += mapped;
   }
   note_libraries();
   is_busy = 0;
   errno = error;
}

static void add_event(struct Event event)
{
   uint64_t place = atomic_fetch_add_explicit(&header->events, 1, memory_order_relaxed);
   if (place >= event_room) {
      pthread_mutex_lock(&table_lock);
      while (place >= event_room && extend_part("events", &event_room, MAX_EVENTS, 0, sizeof event)) {}
      pthread_mutex_unlock(&table_lock);
   }
   if (place < event_room)
      events[place] = event;
   else
      header->max_events = event_room;
   if (place < event_room && place % MAPPED_EVENTS == MAPPED_EVENTS - 1) /* the memory shall be the program's */
      madvise(&events[place + 1 - MAPPED_EVENTS], MAPPED_EVENTS * sizeof event, MADV_DONTNEED);
}

/* Note a read that returned length bytes. offset < 0: the descriptor's own, which was moved by it. */
static void note_read(int fd, int64_t offset, ssize_t length, uint64_t start)
{
   if (length < 0 || is_busy || !begin())
      return;
   uint64_t end = now();
   int error = errno;
   is_busy = 1;
   uint32_t number = find_file(fd);
   if (number != IGNORED) {
      struct File *file = &files[number];
      atomic_fetch_add_explicit(&file->bytes, length, memory_order_relaxed);
      atomic_fetch_add_explicit(&file->calls, 1, memory_order_relaxed);
      atomic_fetch_add_explicit(&file->nanoseconds, end - start, memory_order_relaxed);
      if (offset <= UNCOUNTED)
         header->uncounted += length;
      if (file->kind == REGULAR && offset < 0)
         offset = offset < UNCOUNTED ? UNCOUNTED_AT(offset) : lseek(fd, 0, SEEK_CUR) - length;
      if (file->kind == REGULAR)
         add_event((struct Event){number, 0, start, end - start, offset, length});
      for (int i = 0; file->kind == REGULAR && i < wanted.count; i++) {
         int64_t place = wanted.positions[i];
         if (place >= offset && place + wanted.lengths[i] <= offset + length)
            add_event((struct Event){number, 0, start, WANTED, place, wanted.lengths[i]});
      }
   }
   is_busy = 0;
   errno = error;
}

#define OPENER(name, mode_type, parameters, arguments, flags)                                               \
   int name parameters                                                                                      \
   {                                                                                                        \
      REAL(int, name, parameters);                                                                          \
      mode_t mode = 0;                                                                                      \
      path = find_path(path);                                                                               \
      if (flags & (O_CREAT | __O_TMPFILE)) {                                                                \
         va_list rest;                                                                                      \
         va_start(rest, flags);                                                                             \
         mode = va_arg(rest, mode_type);                                                                    \
         va_end(rest);                                                                                      \
      }                                                                                                     \
      int fd = real arguments;                                                                              \
      note_use(fd, 1, 0);                                                                                   \
      return fd;                                                                                            \
   }

/* Two functions whose names differ by 64 between name and end, and nothing else: all offsets have 64 bits. */
#define PAIR(macro, name, end, ...) macro(name##end, __VA_ARGS__) macro(name##64##end, __VA_ARGS__)

PAIR(OPENER, open, , int, (const char *path, int flags, ...), (path, flags, mode), flags)
PAIR(OPENER, openat, , int, (int folder, const char *path, int flags, ...), (folder, path, flags, mode), flags)

#define PLAIN_OPENER(name, result, parameters, arguments, fd_of)                                            \
   result name parameters                                                                                   \
   {                                                                                                        \
      REAL(result, name, parameters);                                                                       \
      result opened = real arguments;                                                                       \
      note_use(fd_of, 1, 0);                                                                                \
      return opened;                                                                                        \
   }

PAIR(PLAIN_OPENER, __open, _2, int, (const char *path, int flags), (path, flags), opened)
PAIR(PLAIN_OPENER, __openat, _2, int, (int folder, const char *path, int flags), (folder, path, flags), opened)
PAIR(PLAIN_OPENER, creat, , int, (const char *path, mode_t mode), (path, mode), opened)
PAIR(PLAIN_OPENER, fopen, , FILE *, (const char *path, const char *mode), (path, mode), opened ? fileno(opened) : -1)
PAIR(PLAIN_OPENER, freopen, , FILE *, (const char *path, const char *mode, FILE *stream), (path, mode, stream),
     opened ? fileno(opened) : -1)

/* A function after which some descriptors stand for other files, or none. */
#define FORGETTER(result, name, parameters, arguments, first, last)                                         \
   result name parameters                                                                                   \
   {                                                                                                        \
      REAL(result, name, parameters);                                                                       \
      for (unsigned fd = first; fd <= (unsigned)(last) && fd < MAX_FDS; fd++)                               \
         forget_fd(fd);                                                                                     \
      return real arguments;                                                                                \
   }

FORGETTER(int, close, (int closed), (closed), closed, closed)
FORGETTER(int, close_range, (unsigned from, unsigned to, int flags), (from, to, flags), from, to)
FORGETTER(void, closefrom, (int from), (from), from, MAX_FDS)
FORGETTER(int, dup2, (int from, int to), (from, to), from == to ? MAX_FDS : to, to)
FORGETTER(int, dup3, (int from, int to, int flags), (from, to, flags), to, to)

/* A function that reads from a descriptor; offset < 0 for that of the descriptor. */
#define READER(name, parameters, arguments, fd, offset)                                                     \
   ssize_t name parameters                                                                                  \
   {                                                                                                        \
      REAL(ssize_t, name, parameters);                                                                      \
      int64_t position = offset;                                                                            \
      uint64_t start = now();                                                                               \
      ssize_t length = real arguments;                                                                      \
      note_read(fd, position, length, start);                                                               \
      return length;                                                                                        \
   }

READER(read, (int fd, void *buffer, size_t size), (fd, buffer, size), fd, -1)
READER(__read_chk, (int fd, void *buffer, size_t size, size_t room), (fd, buffer, size, room), fd, -1)
PAIR(READER, pread, , (int fd, void *buffer, size_t size, off_t place), (fd, buffer, size, place), fd, place)
PAIR(READER, __pread, _chk, (int fd, void *buffer, size_t size, off_t place, size_t room),
     (fd, buffer, size, place, room), fd, place)
READER(readv, (int fd, const struct iovec *parts, int count), (fd, parts, count), fd, -1)
PAIR(READER, preadv, , (int fd, const struct iovec *parts, int count, off_t place),
     (fd, parts, count, place), fd, place)
READER(preadv2, (int fd, const struct iovec *parts, int count, off_t place, int flags),
       (fd, parts, count, place, flags), fd, place)
READER(preadv64v2, (int fd, const struct iovec *parts, int count, off64_t place, int flags),
       (fd, parts, count, place, flags), fd, place)
PAIR(READER, sendfile, , (int out, int in, off_t *place, size_t size), (out, in, place, size), in, place ? *place : -1)
READER(copy_file_range, (int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags),
       (in, from, out, to, size, flags), in, from ? *from : -1)
READER(splice, (int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags),
       (in, from, out, to, size, flags), in, from ? UNCOUNTED_AT(*from) : UNCOUNTED)
READER(recv, (int fd, void *buffer, size_t size, int flags), (fd, buffer, size, flags), UNLESS_PEEKED(fd), UNCOUNTED)
READER(__recv_chk, (int fd, void *buffer, size_t size, size_t room, int flags), (fd, buffer, size, room, flags),
       UNLESS_PEEKED(fd), UNCOUNTED)
READER(recvfrom, (int fd, void *buffer, size_t size, int flags, struct sockaddr *peer, socklen_t *length_of_peer),
       (fd, buffer, size, flags, peer, length_of_peer), UNLESS_PEEKED(fd), UNCOUNTED)
READER(__recvfrom_chk,
       (int fd, void *buffer, size_t size, size_t room, int flags, struct sockaddr *peer, socklen_t *length_of_peer),
       (fd, buffer, size, room, flags, peer, length_of_peer), UNLESS_PEEKED(fd), UNCOUNTED)
READER(recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), UNLESS_PEEKED(fd), UNCOUNTED)

/* A read that the C library's own threads made, at the call that collects its result. */
READER(aio_return, (struct aiocb *request), (request), request->aio_lio_opcode == LIO_READ ? request->aio_fildes : -1,
       request->aio_offset)
READER(aio_return64, (struct aiocb64 *request), (request),
       request->aio_lio_opcode == LIO_READ ? request->aio_fildes : -1, request->aio_offset)

/* The function of ROOT's files that reads many blocks at once; its symbol in C++ is bool
   TFile::ReadBuffers(char *, long long *, int *, int). */
#define READ_BUFFERS "_ZN5TFile11ReadBuffersEPcPxPii"
_Bool read_buffers(void *, char *, long long *, int *, int) __asm__(READ_BUFFERS);

_Bool read_buffers(void *file, char *buffer, long long *positions, int *lengths, int count)
{
   static _Bool (*real)(void *, char *, long long *, int *, int);
   Dl_info caller;
   if (!real) {
      /* ROOT's library may be loaded for its user alone; code that ROOT compiles is in none. */
      int is_library = dladdr(__builtin_return_address(0), &caller);
      void *library = dlopen(is_library ? caller.dli_fname : "libRIO.so", RTLD_LAZY | RTLD_NOLOAD);
      *(void **)&real = dlsym(library ? library : RTLD_NEXT, READ_BUFFERS);
   }
   if (!real)
      return 1; /* ROOT reports that it could not read */
   if (buffer)
      wanted = (struct Wanted){positions, lengths, count};
   _Bool failed = real(file, buffer, positions, lengths, count);
   wanted.count = 0;
   return failed;
}

/* Libraries of rings and queues, which may be loaded for their user alone, pass by the C library. */
#define RING(name, file, type)                                                                              \
   int name(unsigned entries, void *ring, type options)                                                     \
   {                                                                                                        \
      static int (*real)(unsigned, void *, type);                                                           \
      void *library = real ? NULL : dlopen(file, RTLD_LAZY | RTLD_NOLOAD);                                  \
      if (!real)                                                                                            \
         *(void **)&real = dlsym(library ? library : RTLD_NEXT, #name);                                     \
      if (is_ready && header)                                                                               \
         header->flags |= RING_USED;                                                                        \
      return real ? real(entries, ring, options) : -ENOSYS;                                                 \
   }

RING(io_uring_queue_init, "liburing.so.2", unsigned)
RING(io_uring_queue_init_params, "liburing.so.2", void *)
RING(io_setup, "libaio.so.1", void *) /* has no options */

/* Not of memory that processes share: a file to be written that is empty, or that shm_open() opened. */
#define MAPPER(name, parameters)                                                                            \
   void *name parameters                                                                                    \
   {                                                                                                        \
      REAL(void *, name, parameters);                                                                       \
      void *mapped = real(address, length, protection, flags, fd, offset);                                  \
      struct stat status;                                                                                   \
      int is_shared = flags & MAP_SHARED && protection & PROT_WRITE;                                        \
      if (mapped != MAP_FAILED && !(flags & MAP_ANONYMOUS) && !(protection & PROT_EXEC) && fd < MAX_FDS &&  \
          syscall(SYS_fstat, fd, &status) == 0 && (!is_shared || (file_of_fd[fd] && status.st_blocks)))     \
         note_use(fd, 0, length);                                                                           \
      return mapped;                                                                                        \
   }

PAIR(MAPPER, mmap, , (void *address, size_t length, int protection, int flags, int fd, off_t offset))

static ssize_t read_stream(FILE *stream, void *buffer, ssize_t size)
{
   uint64_t start = now();
   ssize_t length = stream_read(stream, buffer, size);
   note_read(stream->_fileno, -1, length, start);
   return length;
}

static int close_stream(FILE *stream)
{
   forget_fd(stream->_fileno);
   return stream_close(stream);
}

/* Replace an entry of the table of functions of C streams, which is read-only after the start. */
static int replace_entry(void **table, void *original, void *replacement)
{
   for (int place = 0; table && original && place < 21; place++) /* of struct _IO_jump_t, since 1997 */
      if (table[place] == original) {
         long page = sysconf(_SC_PAGESIZE);
         char *first = (char *)((uintptr_t)&table[place] / page * page);
         size_t length = (char *)(&table[place] + 1) - first;
         if (mprotect(first, length, PROT_READ | PROT_WRITE) != 0)
            return 0;
         table[place] = replacement;
         mprotect(first, length, PROT_READ);
         return 1;
      }
   return 0;
}

static void watch_streams(void)
{
   static const char *const tables[] = {"_IO_file_jumps", "_IO_wfile_jumps"};
   *(void **)&stream_read = dlsym(RTLD_NEXT, "_IO_file_read");
   *(void **)&stream_close = dlsym(RTLD_NEXT, "_IO_file_close");
   are_streams_seen = 1;
   for (unsigned i = 0; i < sizeof tables / sizeof *tables; i++) {
      void **table = dlsym(RTLD_NEXT, tables[i]);
      are_streams_seen &= replace_entry(table, (void *)stream_close, (void *)close_stream);
      are_streams_seen &= replace_entry(table, (void *)stream_read, (void *)read_stream);
   }
}

extern void *__dso_handle;
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

/* Called before the constructors of libraries where these read, as that of ROOT's. */
__attribute__((constructor)) static int begin(void)
{
   if (is_ready)
      return 1;
   /* Programs such as bash have a getenv of their own, which is not ready yet. */
   REAL(char *, getenv, (const char *));
   const char *name = real("TREEHAMMER_TRACE");
   int (*at_fork)(void (*)(void), void (*)(void), void (*)(void)) = dlsym(RTLD_DEFAULT, "pthread_atfork");
   is_busy = 1;
   snprintf(folder, sizeof folder, "%s", name ? name : "");
   names_recordings = *folder && real("TREEHAMMER_TRACE_XROOTD");
   if (__register_atfork)
      __register_atfork(NULL, NULL, forget_parent, &__dso_handle);
   else if (at_fork) /* the C library musl */
      at_fork(NULL, NULL, forget_parent);
   watch_streams();
   name_recording();
   open_log();
   note_libraries();
   is_busy = 0;
   return is_ready = 1;
}

/* Reads by io_uring pass no function of the C library: note that they happened. */
__attribute__((destructor)) static void end(void)
{
   struct stat status;
   char path[PATH_BYTES];
   is_busy = 1;
   for (int fd = 0, gaps = 0; header && gaps < 16; fd++)
      gaps = describe_fd(fd, &status, path) ? 0 : gaps + 1;
   note_libraries();
   is_busy = 0;
}
