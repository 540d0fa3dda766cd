"""Writer of branches that an RNTuple cannot hold, run with ROOT: ``awkward_file.py FILE``."""

import sys

import ROOT

file = ROOT.TFile(sys.argv[1], "RECREATE")
folder = file.mkdir("deep")
folder.cd()
ROOT.gInterpreter.ProcessLine("""
TTree *tree = new TTree("events", "");
int event; float x, half; double pair[2]; std::vector<float> values; TNamed named;
tree->Branch("event", &event);
tree->Branch("dotted.x", &x);
tree->Branch("half", &half, "half/f");
tree->Branch("pair", pair, "first/D:second/D");
tree->Branch("values", &values);
tree->Branch("named", &named);
tree->SetAutoFlush(50);
for (event = 0; event < 330; ++event) {
   if (event == 100) tree->SetAutoFlush(75);
   x = half = event; pair[0] = event; pair[1] = -event;
   values.assign(event % 4, event);
   named.SetName(TString::Format("name%d", event));
   tree->Fill();
}
""")
file.Write("", ROOT.TObject.kOverwrite)
file.Close()
