// The kit as a shared library that Python calls without PyROOT: one function calls all others by their
// names, with arguments as text and results as JSON.
//
// TREEHAMMER_NTUPLE adds the reader of RNTuples, TREEHAMMER_FRAME that of data frames, and
// TREEHAMMER_CALLGRIND, the path of valgrind's header, the count of a loop's instructions.
#include "kit.hpp"
#ifdef TREEHAMMER_NTUPLE
#include "ntuple_reader.hpp"
#endif

#ifdef TREEHAMMER_FRAME
#include "columns/dataframe.hpp"
#endif

#ifdef TREEHAMMER_CALLGRIND
#include TREEHAMMER_CALLGRIND
#endif

#include <TEnv.h>
#include <TROOT.h>
#include <TSystem.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace treehammer;
using Arguments = std::vector<std::string>;

// --- JSON ------------------------------------------------------------------------------------------

std::string Json(bool value)
{
   return value ? "true" : "false";
}
std::string Json(int value)
{
   return std::to_string(value);
}
std::string Json(Long64_t value)
{
   return std::to_string(value);
}
std::string Json(double value) // Python reads NaN and Infinity, too
{
   if (std::isnan(value))
      return "NaN";
   if (std::isinf(value))
      return value > 0 ? "Infinity" : "-Infinity";
   char text[32];
   std::snprintf(text, sizeof text, "%.17g", value);
   return text;
}
std::string Json(const std::string &value)
{
   std::string text = "\"";
   for (const char letter : value) {
      if (letter == '"' || letter == '\\')
         text += '\\';
      if (static_cast<unsigned char>(letter) < ' ') {
         char escape[8];
         std::snprintf(escape, sizeof escape, "\\u%04x", letter);
         text += escape;
      } else
         text += letter;
   }
   return text + '"';
}
std::string Json(const char *value)
{
   return Json(std::string(value));
}

/// An object, as its members and their values in JSON.
class Members {
   std::string fText;

public:
   template <typename T>
   Members &Add(const char *name, const T &value);
   friend std::string Json(const Members &members) { return "{" + members.fText + "}"; }
};

template <typename A, typename B>
std::string Json(const std::pair<A, B> &pair)
{
   return Json(Members().Add("first", pair.first).Add("second", pair.second));
}
std::string Json(const Clock &clock)
{
   return Json(Members().Add("wall", clock.wall).Add("user", clock.user).Add("sys", clock.sys));
}
std::string Json(const FriendTrees &friends);
std::string Json(const FollowedFriends &followed);
std::string Json(const BranchInfo &branch);
#ifdef TREEHAMMER_NTUPLE
std::string Json(const NTupleField &field);
#endif

template <typename Container>
auto Json(const Container &items) -> decltype(items.begin(), items.end(), std::string())
{
   std::string text;
   for (const auto &item : items)
      text += (text.empty() ? "" : ",") + Json(item);
   return "[" + text + "]";
}

template <typename T>
Members &Members::Add(const char *name, const T &value)
{
   fText += (fText.empty() ? "" : ",") + Json(name) + ":" + Json(value);
   return *this;
}

std::string Json(const FriendTrees &friends)
{
   return Json(Members().Add("names", friends.names));
}
std::string Json(const FollowedFriends &followed)
{
   return Json(Members().Add("foreign", followed.foreign).Add("indexed", followed.indexed));
}
std::string Json(const BranchInfo &branch)
{
   return Json(Members()
                  .Add("name", branch.name)
                  .Add("zip_bytes", branch.zip_bytes)
                  .Add("counters", branch.counters)
                  .Add("types", branch.types));
}
#ifdef TREEHAMMER_NTUPLE
std::string Json(const NTupleField &field)
{
   return Json(Members().Add("name", field.name).Add("counters", field.counters).Add("types", field.types));
}
#endif

// --- Readers ---------------------------------------------------------------------------------------

std::vector<int> ParseNumbers(const std::string &text)
{
   std::vector<int> numbers;
   std::istringstream stream(text);
   for (int number; stream >> number;)
      numbers.push_back(number);
   return numbers;
}

void AddShared(Members &members, const FileReader &reader)
{
   members.Add("open", reader.open)
      .Add("get_tree", reader.get_tree)
      .Add("prepare", reader.prepare)
      .Add("loop", reader.loop)
      .Add("close", reader.close)
      .Add("failure_class", reader.failure_class)
      .Add("kind", reader.kind)
      .Add("message", reader.message)
      .Add("file_class", reader.file_class)
      .Add("data_server", reader.data_server)
      .Add("first_byte_s", reader.first_byte_s)
      .Add("run_queue_s", reader.run_queue_s)
      .Add("file_size", reader.file_size)
      .Add("entries_total", reader.entries_total)
      .Add("kernel_read_chars", reader.kernel_read_chars)
      .Add("kernel_read_bytes", reader.kernel_read_bytes)
      .Add("kernel_read_calls", reader.kernel_read_calls)
      .Add("read_calls_sequential", reader.read_calls_sequential)
      .Add("skipped_forward_bytes", reader.skipped_forward_bytes)
      .Add("skipped_backward_bytes", reader.skipped_backward_bytes)
      .Add("hw_instructions", reader.hw_instructions)
      .Add("hw_cycles", reader.hw_cycles)
      .Add("hw_cache_misses", reader.hw_cache_misses)
      .Add("other_files", reader.other_files);
}

Members DescribePass(const FilePass &current)
{
   return Members().Add("events", current.events).Add("bytes", current.bytes).Add("reported", current.reported);
}

/// Values of all public members.
std::string Attributes(const Reader &reader)
{
   Members members;
   AddShared(members, reader);
   members.Add("current", DescribePass(reader.current)).Add("bytes_read", reader.bytes_read)
      .Add("bytes_read_extra", reader.bytes_read_extra)
      .Add("read_calls", reader.read_calls)
      .Add("cache_size", reader.cache_size)
      .Add("cache_bytes_read", reader.cache_bytes_read)
      .Add("cache_read_calls", reader.cache_read_calls)
      .Add("cache_missed_bytes", reader.cache_missed_bytes)
      .Add("cache_missed_calls", reader.cache_missed_calls)
      .Add("cache_efficiency", reader.cache_efficiency)
      .Add("cache_efficiency_rel", reader.cache_efficiency_rel)
      .Add("cached", reader.cached)
      .Add("prefetching", reader.prefetching)
      .Add("vector_calls", reader.vector_calls)
      .Add("vector_blocks", reader.vector_blocks)
      .Add("perfstats_bytes_read", reader.perfstats_bytes_read)
      .Add("perfstats_read_calls", reader.perfstats_read_calls)
      .Add("baskets_read", reader.baskets_read)
      .Add("perfstats_read_s", reader.perfstats_read_s)
      .Add("perfstats_unzip_s", reader.perfstats_unzip_s)
      .Add("perfstats_wall_s", reader.perfstats_wall_s)
      .Add("perfstats_cpu_s", reader.perfstats_cpu_s)
      .Add("longest_read_s", reader.longest_read_s)
      .Add("latencies", reader.latencies)
      .Add("friends", reader.friends);
   return Json(members);
}

template <typename Calls>
void AddFormatCalls(Calls &calls, const Reader *)
{
   calls["GetTree"] = [](Reader &reader, const Arguments &given) { return Json(reader.GetTree(given.at(0))); };
   calls["Prepare"] = [](Reader &reader, const Arguments &given) {
      return Json(reader.Prepare(std::stoll(given.at(0)), given.at(1) == "1", ParseNumbers(given.at(2))));
   };
   calls["OtherLengths"] = [](Reader &reader, const Arguments &) { return Json(reader.OtherLengths()); };
}

#ifdef TREEHAMMER_NTUPLE
std::string Attributes(const NTupleReader &reader)
{
   Members members;
   AddShared(members, reader);
   members.Add("current", DescribePass(reader.current)).Add("counters", reader.counters).Add("cluster_cache", reader.cluster_cache);
   return Json(members);
}

template <typename Calls>
void AddFormatCalls(Calls &calls, const NTupleReader *)
{
   calls["GetTree"] = [](NTupleReader &reader, const Arguments &given) {
      return Json(reader.GetTree(given.at(0), given.at(1) == "1", std::stoul(given.at(2))));
   };
   calls["Prepare"] = [](NTupleReader &reader, const Arguments &given) {
      return Json(reader.Prepare(ParseNumbers(given.at(0))));
   };
   calls["ZipBytes"] = [](NTupleReader &reader, const Arguments &given) {
      return Json(Long64_t(reader.ZipBytes(ParseNumbers(given.at(0)))));
   };
}
#endif

template <typename R>
using ReaderCalls = std::map<std::string, std::string (*)(R &, const Arguments &)>;

/// The methods of a reader by name.
template <typename R>
ReaderCalls<R> MakeReaderCalls()
{
   ReaderCalls<R> calls;
   calls["attributes"] = [](R &reader, const Arguments &) { return Attributes(reader); };
   calls["delete"] = [](R &reader, const Arguments &) {
      delete &reader;
      return Json(true);
   };
   calls["Open"] = [](R &reader, const Arguments &given) { return Json(reader.Open(given.at(0))); };
   calls["Survey"] = [](R &reader, const Arguments &) { return Json(reader.Survey()); };
   calls["Contents"] = [](R &reader, const Arguments &) { return Json(reader.Contents()); };
   calls["IsFoundByDataFrame"] = [](R &reader, const Arguments &given) {
      return Json(reader.IsFoundByDataFrame(given.at(0)));
   };
   calls["FollowFriends"] = [](R &reader, const Arguments &) { return Json(reader.FollowFriends()); };
   calls["ClusterEntries"] = [](R &reader, const Arguments &) { return Json(reader.ClusterEntries()); };
   calls["ChooseEvents"] = [](R &reader, const Arguments &given) {
      reader.ChooseEvents(std::stoll(given.at(0)), std::stod(given.at(1)), std::stoull(given.at(2)));
      return Json(true);
   };
   calls["CountEvents"] = [](R &reader, const Arguments &) { return Json(reader.CountEvents()); };
   calls["SetSetting"] = [](R &reader, const Arguments &given) {
      reader.SetSetting(given.at(0), given.at(1));
      return Json(true);
   };
   calls["Run"] = [](R &reader, const Arguments &) { return Json(reader.Run()); };
   calls["StartTurns"] = [](R &reader, const Arguments &) {
      reader.StartTurns();
      return Json(true);
   };
   calls["RunTurn"] = [](R &reader, const Arguments &given) {
      return Json(reader.RunTurn(std::stoll(given.at(0)), std::stoll(given.at(1))));
   };
   calls["CountTurnEvents"] = [](R &reader, const Arguments &) { return Json(reader.CountTurnEvents()); };
   calls["DescribeTurn"] = [](R &reader, const Arguments &) { return Json(reader.DescribeTurn()); };
   calls["FinishTurns"] = [](R &reader, const Arguments &) {
      reader.FinishTurns();
      return Json(true);
   };
   calls["Close"] = [](R &reader, const Arguments &) {
      reader.Close();
      return Json(true);
   };
   AddFormatCalls(calls, static_cast<const R *>(nullptr));
   return calls;
}

#ifdef TREEHAMMER_FRAME
template <>
ReaderCalls<FrameReader> MakeReaderCalls<FrameReader>()
{
   ReaderCalls<FrameReader> calls;
   calls["attributes"] = [](FrameReader &reader, const Arguments &) {
      Members members;
      AddShared(members, reader);
      return Json(members.Add("bytes_read", reader.bytes_read).Add("read_calls", reader.read_calls));
   };
   calls["delete"] = [](FrameReader &reader, const Arguments &) {
      delete &reader;
      return Json(true);
   };
   calls["Open"] = [](FrameReader &reader, const Arguments &given) {
      return Json(reader.Open(given.at(0), given.at(1)));
   };
   calls["Columns"] = [](FrameReader &reader, const Arguments &) { return Json(reader.Columns()); };
   calls["Prepare"] = [](FrameReader &reader, const Arguments &) { return Json(reader.Prepare()); };
   calls["Run"] = [](FrameReader &reader, const Arguments &) { return Json(reader.Run()); };
   calls["StartTurns"] = [](FrameReader &reader, const Arguments &given) {
      reader.StartTurns(std::stoll(given.at(0)));
      return Json(true);
   };
   calls["RunTurn"] = [](FrameReader &reader, const Arguments &given) {
      return Json(reader.RunTurn(std::stoll(given.at(0)), std::stoll(given.at(1))));
   };
   calls["DescribeTurn"] = [](FrameReader &reader, const Arguments &) { return Json(reader.DescribeTurn()); };
   calls["FinishTurns"] = [](FrameReader &reader, const Arguments &) {
      reader.FinishTurns();
      return Json(true);
   };
   calls["Results"] = [](FrameReader &reader, const Arguments &) {
      const FrameResults results = reader.Results();
      return Json(Members()
                     .Add("read", results.read)
                     .Add("kept", results.kept)
                     .Add("bins", results.bins)
                     .Add("reported", results.reported));
   };
   calls["Close"] = [](FrameReader &reader, const Arguments &) {
      reader.Close();
      return Json(true);
   };
   return calls;
}
#endif

template <typename R>
std::string CallReader(void *reader, const std::string &name, const Arguments &given)
{
   static const ReaderCalls<R> calls = MakeReaderCalls<R>();
   return calls.at(name)(*static_cast<R *>(reader), given);
}

// --- Functions -------------------------------------------------------------------------------------

std::uintptr_t ParseAddress(const std::string &text)
{
   return std::stoull(text);
}

std::string Address(const void *object)
{
   return std::to_string(reinterpret_cast<std::uintptr_t>(object));
}

std::map<std::string, std::string (*)(const Arguments &)> MakeCalls()
{
   std::map<std::string, std::string (*)(const Arguments &)> calls;
   calls["gROOT.SetBatch"] = [](const Arguments &) {
      gROOT->SetBatch(true);
      gErrorIgnoreLevel = kWarning;
      return Json(true);
   };
   calls["gROOT.GetVersion"] = [](const Arguments &) { return Json(gROOT->GetVersion()); };
   calls["gROOT.GetVersionInt"] = [](const Arguments &) { return Json(int(gROOT->GetVersionInt())); };
   calls["gROOT.GetGitCommit"] = [](const Arguments &) { return Json(gROOT->GetGitCommit()); };
   calls["gROOT.GetConfigFeatures"] = [](const Arguments &) { return Json(gROOT->GetConfigFeatures()); };
   calls["gSystem.GetBuildArch"] = [](const Arguments &) { return Json(gSystem->GetBuildArch()); };
   calls["gSystem.GetBuildCompilerVersionStr"] = [](const Arguments &) {
      return Json(gSystem->GetBuildCompilerVersionStr());
   };
   calls["gSystem.GetFlagsOpt"] = [](const Arguments &) { return Json(gSystem->GetFlagsOpt()); };
   calls["gSystem.Load"] = [](const Arguments &given) { return Json(gSystem->Load(given.at(0).c_str())); };
   calls["gSystem.Setenv"] = [](const Arguments &given) {
      gSystem->Setenv(given.at(0).c_str(), given.at(1).c_str());
      return Json(true);
   };
   calls["gEnv.SetValue"] = [](const Arguments &given) {
      gEnv->SetValue(given.at(0).c_str(), given.at(1).c_str());
      return Json(true);
   };
   calls["treehammer.PrintFramesOfCrashes"] = [](const Arguments &) {
      PrintFramesOfCrashes();
      return Json(true);
   };
   calls["treehammer.LoadPlugin"] = [](const Arguments &given) {
      LoadPlugin(given.at(0));
      return Json(true);
   };
   calls["treehammer.OpenHardwareCounters"] = [](const Arguments &) { return Json(OpenHardwareCounters()); };
   calls["treehammer.WriteWarmUpFile"] = [](const Arguments &given) {
      WriteWarmUpFile(given.at(0), given.at(1));
      return Json(true);
   };
   calls["treehammer.TheLoop"] = [](const Arguments &given) {
      TheLoop() = reinterpret_cast<Loop>(ParseAddress(given.at(0)));
      return Json(true);
   };
   calls["treehammer.Reader"] = [](const Arguments &) { return Address(new Reader); };
#ifdef TREEHAMMER_NTUPLE
   calls["treehammer.WriteWarmUpNTuple"] = [](const Arguments &given) {
      WriteWarmUpNTuple(given.at(0), given.at(1));
      return Json(true);
   };
   calls["treehammer.TheNTupleLoop"] = [](const Arguments &given) {
      TheNTupleLoop() = reinterpret_cast<NTupleLoop>(ParseAddress(given.at(0)));
      return Json(true);
   };
   calls["treehammer.NTupleReader"] = [](const Arguments &) { return Address(new NTupleReader); };
#endif
#ifdef TREEHAMMER_FRAME
   calls["treehammer.EnableThreads"] = [](const Arguments &given) {
      EnableThreads(std::stoi(given.at(0)));
      return Json(true);
   };
   calls["treehammer.TheAnalysis"] = [](const Arguments &given) {
      TheAnalysis() = reinterpret_cast<Analysis>(ParseAddress(given.at(0)));
      return Json(true);
   };
   calls["treehammer.FrameReader"] = [](const Arguments &) { return Address(new FrameReader); };
#endif
#ifdef TREEHAMMER_CALLGRIND
   calls["treehammer.RunsUnderValgrind"] = [](const Arguments &) { return Json(RUNNING_ON_VALGRIND > 0); };
   calls["treehammer.CountLoop"] = [](const Arguments &) {
      TheLoopHooks() = {[] { CALLGRIND_START_INSTRUMENTATION; }, [] { CALLGRIND_STOP_INSTRUMENTATION; }};
      return Json(true);
   };
#endif
   return calls;
}

std::string Call(const std::string &name, void *object, const Arguments &given)
{
   static const auto calls = MakeCalls();
   const auto dot = name.find('.');
   const std::string type = name.substr(0, dot);
   if (type == "Reader")
      return CallReader<Reader>(object, name.substr(dot + 1), given);
#ifdef TREEHAMMER_NTUPLE
   if (type == "NTupleReader")
      return CallReader<NTupleReader>(object, name.substr(dot + 1), given);
#endif
#ifdef TREEHAMMER_FRAME
   if (type == "FrameReader")
      return CallReader<FrameReader>(object, name.substr(dot + 1), given);
#endif
   return calls.at(name)(given);
}

} // namespace

/// Call a function, or a method of an object; return its result as JSON, valid until the next call.
/// An exception is returned as its message after an exclamation mark.
extern "C" const char *treehammer_call(const char *name, void *object, int count, const char **arguments)
{
   static std::string result;
   try {
      result = Call(name, object, Arguments(arguments, arguments + count));
   } catch (const std::exception &error) {
      result = std::string("!") + name + ": " + error.what();
   }
   return result.c_str();
}
