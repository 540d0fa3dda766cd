// Timed read of one file of any format: phases, ROOT's errors, the kernel's counters.
#ifndef TREEHAMMER_FILE_READER
#define TREEHAMMER_FILE_READER

#include "accounts.hpp"
#include "events.hpp"
#include "file_objects.hpp"
#include "hardware_counters.hpp"

#include <TClass.h>
#include <TFile.h>
#include <TKey.h>
#include <TPluginManager.h>
#include <TROOT.h>

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace treehammer {

/// A failed read; any other exception of a loop is the payload's own failure.
struct ReadError : std::runtime_error {
   using std::runtime_error::runtime_error;
};

/// Functions called right before and after the loop, outside its clocks; null for none.
struct LoopHooks {
   void (*begin)() = nullptr;
   void (*end)() = nullptr;
};

/// Address of the server that a file is read from, also behind a redirector; '' where XRootD's client
/// does not report it.  ROOT has no accessor for its client's file, and its wheels have no headers of
/// the client: the member is found by the dictionary, and the function by its symbol.
inline std::string FindDataServer(TFile &file)
{
   if (std::string(file.ClassName()) != "TNetXNGFile")
      return {};
   using GetProperty = bool (*)(const void *, const std::string &, std::string &);
   const auto get = reinterpret_cast<GetProperty>(
      dlsym(RTLD_DEFAULT, "_ZNK5XrdCl4File11GetPropertyERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERS6_"));
   const auto offset = file.IsA()->GetDataMemberOffset("fFile");
   if (!get || offset <= 0)
      return {};
   const void *client = *reinterpret_cast<void **>(reinterpret_cast<char *>(&file) + offset);
   std::string server;
   return client && get(client, "DataServer", server) ? server : std::string();
}

inline LoopHooks &TheLoopHooks()
{
   static LoopHooks hooks;
   return hooks;
}

/// Copy a range of a file, as delivered by its door, to memory of Python; false on failure.
inline bool CopyOut(TFile *file, Long64_t at, Int_t length, std::uintptr_t target)
{
   return !file->ReadBuffer(reinterpret_cast<char *>(target), at, length);
}

/// One file of one pass, independent of its format.
class FilePass {
public:
   TFile *file = nullptr;
   Entries entries;                          // entries to read of this file
   std::map<std::string, std::string> settings; // the test's [settings]; lists and tables as JSON
   std::map<std::string, double> reported;
   Long64_t events = 0, bytes = 0;

   /// Report a counter declared in test.toml; values of a pass's files are summed.
   void Report(const std::string &name, double value) { reported[name] += value; }
   const std::string &Setting(const std::string &name) const
   {
      const auto found = settings.find(name);
      if (found == settings.end())
         throw std::runtime_error("test.toml has no [settings] key '" + name + "'");
      return found->second;
   }
};

/// Load the library for this URL, ahead of the timed opening.
inline void LoadPlugin(const std::string &url)
{
   if (auto *handler = gROOT->GetPluginManager()->FindHandler("TFile", url.c_str()))
      handler->LoadPlugin();
}

struct BranchInfo {
   std::string name;
   Long64_t zip_bytes = 0;
   std::vector<std::string> counters; // top-level branches with the sizes of its arrays
   BranchTypes types;                 // of the branch and of all below it, by path
};

/// Base class of the readers of both formats.
/// A failed step returns false and sets failure_class, kind and message.
class FileReader {
protected:
   std::unique_ptr<TFile> fFile;
   Long64_t fOthersNs = 0, fLoopCpuNs = 0;
   Kernel fLastIo, fLastOwnIo; // at the end of the last turn, of the process and of this thread
   static constexpr const char *kThreadIo = "/proc/thread-self/io";

   bool Fail(const char *failure, const char *reason, std::string text)
   {
      failure_class = failure;
      kind = reason;
      message = std::move(text);
      if (!FirstError().empty())
         message += " (" + FirstError() + ")";
      return false;
   }

   /// Treat every error message of ROOT as a failure: GetEntry may return success for a basket with
   /// corrupt values.
   bool WithoutErrors(const char *failure, const char *doing)
   {
      return FirstError().empty() ||
             Fail(failure, "error",
                  std::string("ROOT reported an error while ") + doing + " " + (fFile ? fFile->GetName() : ""));
   }

   /// Whether this ROOT registers a class that reads such a URL.
   static bool Supports(const std::string &url)
   {
      if (url.find("://") == std::string::npos || url.rfind("file:", 0) == 0)
         return true;
      auto *handler = gROOT->GetPluginManager()->FindHandler("TFile", url.c_str());
      // Some builds of 6.40 have a class for HTTP, but its handler names no constructor.
      return handler && handler->LoadPlugin() == 0 && FirstError().find("TPluginHandler") != 0;
   }

   /// Open the file for the loop.
   bool OpenFile(const std::string &url, FilePass &current)
   {
      WatchErrors();
      FirstRead first;
      gPerfStats = &first;
      const Clock start = Clock::Now();
      fFile.reset(TFile::Open(url.c_str(), "READ"));
      open = Clock::Now() - start;
      gPerfStats = nullptr;
      const bool recovered = fFile && fFile->TestBit(TFile::kRecovered);
      if (recovered || FirstError().find("truncated") != std::string::npos)
         return Fail("open", "truncated", url + " is truncated or was never closed");
      if ((!fFile || fFile->IsZombie()) && !Supports(url))
         return Fail("software-setup", "not-supported",
                     std::string("ROOT ") + gROOT->GetVersion() + " of this build has no class that opens " + url);
      if (!fFile || fFile->IsZombie())
         return Fail("open", "file", "cannot open " + url);
      first_byte_s = first.end > 0 ? first.end - start.wall : -1;
      file_class = fFile->ClassName();
      file_size = fFile->GetSize();
      data_server = FindDataServer(*fFile);
      current.file = fFile.get();
      return WithoutErrors("open", "opening");
   }

   /// Run the loop between two snapshots of the clocks and the kernel's counters.
   template <typename Body>
   bool Measure(Body &&body)
   {
      Kernel before, after;
      before.TakeIo();
      before.TakeQueue();
      const LoopHooks hooks = TheLoopHooks();
      if (hooks.begin)
         hooks.begin();
      TheHardwareCounters().Start();
      const Clock start = Clock::Now();
      const bool good = Guard(body);
      loop = Clock::Now() - start;
      TheHardwareCounters().Stop();
      if (hooks.end)
         hooks.end();
      after.TakeQueue();
      after.TakeIo();
      if (!good || !WithoutErrors("read", "reading"))
         return false;
      StartCounting();
      AccountKernel(before, after);
      hw_instructions = TheHardwareCounters().Count(0);
      hw_cycles = TheHardwareCounters().Count(1);
      hw_cache_misses = TheHardwareCounters().Count(2);
      return true;
   }

   /// Start a loop of turns.
   void StartTurns()
   {
      StartCounting();
      loop = Clock();
      fLoopCpuNs = 0;
      fOthersNs = OtherThreadsNs();
      EndTurnIo();
   }

   /// Run one turn of a loop that counts its events and bytes in its argument.
   template <typename Body>
   bool MeasureTurn(Body &&body, FilePass &current)
   {
      const Long64_t events = current.events, bytes = current.bytes;
      if (!MeasureTurn(body))
         return false;
      turn.events = current.events - events;
      turn.bytes = current.bytes - bytes;
      return true;
   }

   /// Run one turn of the loop and add it to the loop's figures.  Other threads may also work during
   /// the other process' turns: all their CPU time and reads since the last turn count.
   template <typename Body>
   bool MeasureTurn(Body &&body)
   {
      Kernel before = BeginTurnIo(), after;
      rusage used_before{}, used_after{};
      before.TakeQueue();
      getrusage(RUSAGE_SELF, &used_before);
      const Clock start = Clock::Now();
      const Long64_t wall_ns = ClockNs(CLOCK_MONOTONIC), thread_ns = ClockNs(CLOCK_THREAD_CPUTIME_ID);
      const bool good = Guard(body);
      turn.cpu_ns = ClockNs(CLOCK_THREAD_CPUTIME_ID) - thread_ns;
      turn.wall_ns = ClockNs(CLOCK_MONOTONIC) - wall_ns;
      const Long64_t others_ns = OtherThreadsNs();
      turn.cpu_ns += std::max<Long64_t>(0, others_ns - fOthersNs);
      fOthersNs = others_ns;
      const Clock used = Clock::Now() - start;
      getrusage(RUSAGE_SELF, &used_after);
      after.TakeQueue();
      after.TakeIo();
      EndTurnIo(after);
      if (!good || !WithoutErrors("read", "reading"))
         return false;
      AccountKernel(before, after);
      fLoopCpuNs += turn.cpu_ns;
      loop.wall += 1e-9 * turn.wall_ns;
      loop.sys += used.sys;
      loop.user = std::max(0., 1e-9 * fLoopCpuNs - loop.sys);
      turn.switches_voluntary = used_after.ru_nvcsw - used_before.ru_nvcsw;
      turn.switches_involuntary = used_after.ru_nivcsw - used_before.ru_nivcsw;
      turn.device_bytes = std::max<Long64_t>(0, after.read_bytes - before.read_bytes);
      return true;
   }

   /// Remember the kernel's counters at the end of a turn, of the process and then of this thread.
   void EndTurnIo(Kernel process = {})
   {
      if (process.read_chars < 0)
         process.TakeIo();
      fLastIo = process;
      fLastOwnIo.TakeIo(kThreadIo);
   }

   /// The counters from which a turn counts: those at the end of the last one, with what this thread
   /// read between the turns, its commands among it.
   Kernel BeginTurnIo() const
   {
      Kernel own, begin = fLastIo;
      own.TakeIo(kThreadIo);
      if (own.read_chars < 0 || fLastOwnIo.read_chars < 0 || fLastIo.read_chars < 0) {
         begin.read_chars = -1;
         return begin;
      }
      begin.read_chars += fLastIo.io_cost + own.read_chars - fLastOwnIo.read_chars;
      begin.read_calls += 1 + own.read_calls - fLastOwnIo.read_calls;
      begin.read_bytes += own.read_bytes - fLastOwnIo.read_bytes;
      begin.io_cost = own.io_cost;
      return begin;
   }

   /// Run the loop; its exceptions become failures.
   template <typename Body>
   bool Guard(Body &&body)
   {
      try {
         body();
      } catch (const ReadError &error) {
         const std::string name = fFile ? std::string(fFile->GetName()) + ": " : std::string();
         return Fail("read", "entry", name + error.what());
      } catch (const std::exception &error) {
         return Fail(FirstError().empty() ? "payload" : "read", "exception", error.what());
      }
      return true;
   }

   /// Name the files that ROOT has open beside those of the dataset: no checksum covers what the loop
   /// reads of them.
   void CollectOtherFiles(const std::vector<std::string> &urls)
   {
      for (auto *file : *gROOT->GetListOfFiles())
         if (std::find(urls.begin(), urls.end(), file->GetName()) == urls.end())
            other_files.push_back(file->GetName());
   }

   void AccountDistances(const ReadDistances &distances)
   {
      read_calls_sequential = distances.sequential;
      skipped_forward_bytes = distances.forward;
      skipped_backward_bytes = distances.backward;
   }

   void StartCounting() { run_queue_s = kernel_read_chars = kernel_read_calls = kernel_read_bytes = 0; }

   /// Add the difference of two snapshots; -1 where the kernel does not provide it.
   void AccountKernel(const Kernel &before, const Kernel &after)
   {
      if (before.run_queue_s < 0 || after.run_queue_s < 0)
         run_queue_s = -1;
      else
         run_queue_s += after.run_queue_s - before.run_queue_s;
      if (before.read_chars < 0 || after.read_chars < 0) {
         kernel_read_chars = kernel_read_calls = kernel_read_bytes = -1;
         return;
      }
      // Subtract the bytes read by the snapshots: the first of I/O and both of the run queue.
      const Long64_t own = before.io_cost + before.queue_cost + after.queue_cost;
      kernel_read_chars += after.read_chars - before.read_chars - own;
      kernel_read_calls += after.read_calls - before.read_calls - 3;
      kernel_read_bytes += after.read_bytes - before.read_bytes;
   }

public:
   Clock open, get_tree, prepare, loop, close;
   std::string failure_class, kind, message, file_class, data_server;
   double first_byte_s = -1;
   Long64_t file_size = 0, entries_total = 0;
   Long64_t kernel_read_chars = -1, kernel_read_bytes = -1, kernel_read_calls = -1;
   Long64_t read_calls_sequential = -1, skipped_forward_bytes = -1, skipped_backward_bytes = -1;
   Long64_t hw_instructions = -1, hw_cycles = -1, hw_cache_misses = -1;
   double run_queue_s = -1;
   std::vector<std::string> other_files; // open beside this one when it is closed
   Turn turn; // the last one

   /// Count the events of the last turn.
   Long64_t CountTurnEvents() const { return turn.events; }

   /// The last turn's answer of the turn protocol.
   std::string DescribeTurn() const { return turn.Answer(); }

   /// Paths and classes of the file's objects, for messages.
   ObjectList Contents() const { return ListContents(*fFile); }
};

} // namespace treehammer
#endif
