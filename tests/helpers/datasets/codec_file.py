"""Write a small ROOT file with branches for each compression algorithm; runs in a release's Python."""

import os
import sys

import ROOT

MAKE_FILE_SOURCE = """
#include <TBranch.h>
#include <TFile.h>
#include <TTree.h>
void make(const char *path) {
   TFile file(path, "RECREATE");
   auto *tree = new TTree("events", "events");
   tree->SetAutoFlush(100);
   std::map<const char *, int> settings{{"zlib", 101}, {"lz4", 404}, {"zstd", 505}, {"lzma", 207}, {"stored", 0}};
   struct Values { int n; int plain[8]; std::vector<float> floats; std::string text; };
   std::map<const char *, Values> values;
   for (auto &[name, compression] : settings) {
      auto &mine = values[name];
      tree->Branch(Form("%s_n", name), &mine.n);
      tree->Branch(Form("%s_plain", name), mine.plain, Form("plain[%s_n]/I", name));
      tree->Branch(Form("%s_floats", name), &mine.floats);
      tree->Branch(Form("%s_text", name), &mine.text);
      for (auto *part : {"n", "plain", "floats", "text"})
         tree->GetBranch(Form("%s_%s", name, part))->SetCompressionSettings(compression);
   }
   unsigned long long state = 1;
   auto next = [&] { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33; };
   for (int entry = 0; entry < 500; ++entry) {
      for (auto &[name, mine] : values) {
         mine.n = next() % 9;
         for (auto &x : mine.plain) x = next() % 100;
         mine.floats.assign(next() % 5, mine.n);
         mine.text = std::string(mine.n, 'x');
      }
      tree->Fill();
   }
   file.Write();
}
"""

ROOT.gInterpreter.Declare(MAKE_FILE_SOURCE)
ROOT.make(sys.argv[1])
sys.stdout.flush()
os._exit(0)
