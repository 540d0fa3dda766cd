// Accounting of a read: ROOT's error messages, clocks, kernel counters and ROOT's read events.
#ifndef TREEHAMMER_ACCOUNTS
#define TREEHAMMER_ACCOUNTS

#include <TError.h>
#include <TFile.h>
#include <TFileCacheRead.h>
#include <TTimeStamp.h>
#include <TTree.h>
#include <TTreePerfStats.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace treehammer {

constexpr int kLatencyBins = 32;
constexpr int kLatencyParts = 16; // of each bin, of equal width

// --- ROOT's error messages -----------------------------------------------------------------------

inline std::string &FirstError()
{
   static std::string message;
   return message;
}

inline void RememberError(int level, bool abort, const char *location, const char *message)
{
   static std::mutex guard; // a prefetching thread may report errors as well
   if (level >= kError) {
      const std::lock_guard<std::mutex> held(guard);
      if (FirstError().empty())
         FirstError() = std::string(location ? location : "ROOT") + ": " + (message ? message : "");
   }
   DefaultErrorHandler(level, abort, location, message);
}

/// Clear earlier errors and record the next one.  Replaces PyROOT's handler, which would call Python
/// in a timed phase.
inline void WatchErrors()
{
   FirstError().clear();
   SetErrorHandler(RememberError);
}

// --- Clocks and kernel counters ------------------------------------------------------------------

struct Clock {
   double wall = 0, user = 0, sys = 0; // seconds

   static double Wall()
   {
      timespec t{};
      clock_gettime(CLOCK_MONOTONIC, &t);
      return t.tv_sec + 1e-9 * t.tv_nsec;
   }
   static Clock Now()
   {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      auto seconds = [](const timeval &t) { return t.tv_sec + 1e-6 * t.tv_usec; };
      return {Wall(), seconds(usage.ru_utime), seconds(usage.ru_stime)};
   }
   Clock operator-(const Clock &start) const
   {
      return {wall - start.wall, user - start.user, sys - start.sys};
   }
};

inline Long64_t ClockNs(clockid_t clock)
{
   timespec t{};
   clock_gettime(clock, &t);
   return 1000000000LL * t.tv_sec + t.tv_nsec;
}

/// CPU time of this process' other threads, such as a reader's own, in nanoseconds.
inline Long64_t OtherThreadsNs()
{
   return ClockNs(CLOCK_PROCESS_CPUTIME_ID) - ClockNs(CLOCK_THREAD_CPUTIME_ID);
}

/// One turn of the loop in paired mode.
struct Turn {
   Long64_t cpu_ns = 0, wall_ns = 0, bytes = 0, events = 0;
   Long64_t switches_voluntary = 0, switches_involuntary = 0, device_bytes = 0;

   /// The answer of the turn protocol.
   std::string Answer() const
   {
      std::string text;
      for (Long64_t value : {cpu_ns, wall_ns, bytes, switches_voluntary, switches_involuntary, device_bytes})
         text += (text.empty() ? "" : " ") + std::to_string(value);
      return text;
   }
};

/// Read a small file of /proc with exactly one read(); empty when unreadable.
inline std::string ReadProc(const char *path)
{
   char buffer[1024];
   const int descriptor = ::open(path, O_RDONLY | O_CLOEXEC);
   if (descriptor < 0)
      return {};
   const auto length = ::read(descriptor, buffer, sizeof buffer);
   ::close(descriptor);
   return {buffer, buffer + std::max<decltype(length)>(length, 0)};
}

/// The kernel's counters of this process; -1 if not provided.
struct Kernel {
   Long64_t read_chars = -1, read_bytes = -1, read_calls = -1;
   double run_queue_s = -1; // of this thread
   Long64_t io_cost = 0, queue_cost = 0; // bytes read by taking the snapshot itself

   void TakeIo(const char *path = "/proc/self/io")
   {
      const std::string text = ReadProc(path);
      io_cost = text.size();
      read_chars = Field(text, "rchar: ");
      read_bytes = Field(text, "\nread_bytes: ");
      read_calls = Field(text, "syscr: ");
   }
   void TakeQueue()
   {
      const std::string text = ReadProc("/proc/thread-self/schedstat");
      queue_cost = text.size();
      unsigned long long on_cpu = 0, waited = 0;
      run_queue_s = std::sscanf(text.c_str(), "%llu %llu", &on_cpu, &waited) == 2 ? 1e-9 * waited : -1;
   }
   static Long64_t Field(const std::string &text, const char *name)
   {
      const auto at = text.find(name);
      return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + std::strlen(name));
   }
};

// --- Read events ---------------------------------------------------------------------------------

/// Time at which the first read of an opening file ended.
class FirstRead : public TTreePerfStats {
public:
   double end = 0;
   void FileReadEvent(TFile *, Int_t, Double_t) override
   {
      if (end == 0)
         end = Clock::Wall();
   }
};

/// Index of the part that counts a read's latency: bin i is [2^i, 2^(i+1)) us, the first begins at 0.
inline int LatencyPart(double us)
{
   if (us < 2)
      return us * kLatencyParts / 2;
   const int bin = std::min(std::ilogb(us), kLatencyBins - 1);
   const int part = (std::scalbn(us, -bin) - 1) * kLatencyParts;
   return bin * kLatencyParts + std::min(part, kLatencyParts - 1);
}

/// Access to the blocks that a cache waits for; ROOT has no accessor for them.
class PendingBlocks : public TFileCacheRead {
public:
   /// The number of blocks of the vector read in progress; 0 for any other read.
   static Int_t Count(const TFileCacheRead &cache)
   {
      const bool waits = cache.*(&PendingBlocks::fIsSorted) && !(cache.*(&PendingBlocks::fIsTransferred));
      return waits ? cache.*(&PendingBlocks::fNb) : 0;
   }
   static Long64_t Position(const TFileCacheRead &cache, Int_t block) { return (cache.*(&PendingBlocks::fPos))[block]; }
   static Int_t Length(const TFileCacheRead &cache, Int_t block) { return (cache.*(&PendingBlocks::fLen))[block]; }
};

/// Bytes between reads that follow each other.  An RNTuple is read by a thread of its own.
struct ReadDistances {
   std::atomic<Long64_t> sequential{0}, forward{0}, backward{0};
   Long64_t end = -1; // of the last read

   void Add(Long64_t position, Long64_t length)
   {
      const Long64_t skipped = end < 0 ? 0 : position - end;
      sequential += position == end;
      forward += std::max<Long64_t>(skipped, 0);
      backward += std::max<Long64_t>(-skipped, 0);
      end = position + length;
   }
   void Clear()
   {
      sequential = forward = backward = 0;
      end = -1;
   }
};

/// TTreePerfStats that also counts baskets, the reads by latency, the vector reads of a cache, and distances.
class ReadEvents : public TTreePerfStats {
public:
   Long64_t calls = 0, bytes = 0;
   Long64_t vector_calls = 0, vector_blocks = 0;
   ReadDistances distances;
   const TFileCacheRead *cache = nullptr;
   double longest_s = 0;
   std::array<Long64_t, kLatencyBins * kLatencyParts> latencies{};
   std::atomic<Long64_t> baskets{0}; // implicit multithreading reads branches in parallel

   bool is_remote = false; // a file of the XRootD client

   explicit ReadEvents(TTree *tree) : TTreePerfStats("ioperf", tree) {}

   /// Called for every basket that a branch has read; its base class would keep a list of them.
   void SetUsed(TBranch *, size_t) override { ++baskets; }

   void FileReadEvent(TFile *file, Int_t length, Double_t start) override
   {
      if (file == fFile) {
         const double seconds = std::max(0., double(TTimeStamp()) - start);
         ++calls;
         bytes += length;
         longest_s = std::max(longest_s, seconds);
         ++latencies[LatencyPart(1e6 * seconds)];
         const Int_t blocks = cache ? PendingBlocks::Count(*cache) : 0;
         vector_calls += blocks > 0;
         vector_blocks += blocks;
         AddDistances(file->GetRelOffset(), length, blocks);
      }
      TTreePerfStats::FileReadEvent(file, length, start);
   }

private:
   /// A local file still stands where the read began, a remote one where it ended; of a vector read by the
   /// XRootD client, which is a single event, the cache has the blocks.
   void AddDistances(Long64_t offset, Long64_t length, Int_t blocks)
   {
      if (!is_remote)
         return distances.Add(offset, length);
      for (Int_t block = 0; block < blocks; ++block)
         distances.Add(PendingBlocks::Position(*cache, block), PendingBlocks::Length(*cache, block));
      if (blocks == 0)
         distances.Add(offset - length, length);
   }
};

} // namespace treehammer
#endif
